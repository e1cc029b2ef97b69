"""The pace of a vLLM server: prefills run in batches on one engine, and a running prefill stalls decoding beside it."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

from gpufleet.twin import rdma

LayerDone = Callable[[int], None]


class Prefill:
    """A prompt waiting for, or in, its prefill."""

    def __init__(self, tokens: int, priority: int = 0, on_layer: LayerDone | None = None) -> None:
        self.tokens = tokens
        self.priority = priority
        self.on_layer = on_layer
        self.done = threading.Event()


class Engine:
    """Idle until there is a prompt; costs no CPU then."""

    def __init__(self, prefill_tps: float, native_tps: float, *, batch_tokens: int, max_seqs: int) -> None:
        self._prefill_tps = prefill_tps
        self._step = 1 / native_tps
        self._batch_tokens = batch_tokens
        self._max_seqs = max_seqs
        self._order = itertools.count()
        self._queue: list[tuple[int, int, Prefill]] = []
        self._changed = threading.Condition()
        self._prefilling = False
        self.running = 0
        threading.Thread(target=self._loop, name="engine", daemon=True).start()

    @property
    def waiting(self) -> int:
        """Requests not yet scheduled."""
        return len(self._queue)

    def prefill(self, job: Prefill) -> None:
        """Run ``job`` when its turn comes; blocks until it is done."""
        self.submit(job)
        job.done.wait()

    def submit(self, job: Prefill) -> None:
        """Queue ``job``: lower priority values first, then in order of arrival."""
        with self._changed:
            heapq.heappush(self._queue, (job.priority, next(self._order), job))
            self._changed.notify_all()

    def admit(self) -> None:
        """Count a request whose KV came from elsewhere as running."""
        with self._changed:
            self.running += 1

    def finish(self) -> None:
        """A running request has ended."""
        with self._changed:
            self.running -= 1
            self._changed.notify_all()

    def next_token(self) -> None:
        """Wait for one decode step; longer while a prefill runs on the same server."""
        due = time.monotonic() + self._step
        with self._changed:
            self._changed.wait_for(lambda: not self._prefilling)
        time.sleep(max(0.0, due - time.monotonic()))

    def _loop(self) -> None:
        while True:
            batch = self._take()
            seconds = sum(job.tokens for job in batch) / self._prefill_tps
            for layer in range(rdma.LAYERS_PER_SHARD):
                time.sleep(seconds / rdma.LAYERS_PER_SHARD)
                for job in batch:
                    if job.on_layer is not None:
                        job.on_layer(layer)
            with self._changed:
                self._prefilling = False
                self._changed.notify_all()
            for job in batch:
                job.done.set()

    def _take(self) -> list[Prefill]:
        """The next step: as many waiting prompts as fit into its token budget."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._queue) and self.running < self._max_seqs)
            batch = [heapq.heappop(self._queue)[2]]
            while self._queue and self.running + len(batch) < self._max_seqs and self._fits(batch):
                batch.append(heapq.heappop(self._queue)[2])
            self.running += len(batch)
            self._prefilling = True
            return batch

    def _fits(self, batch: list[Prefill]) -> bool:
        return sum(job.tokens for job in batch) + self._queue[0][2].tokens <= self._batch_tokens
