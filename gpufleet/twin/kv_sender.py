"""The prefill side of TileRT's hand-over: one sender thread per tensor-parallel rank, one staging buffer per rank.

Behaviour of tilert 0.1.6.post3, pd_vllm/prefill_connector.py, its flaw included: the staging buffer is shared by all
requests and nothing waits until it has been sent, so requests that overlap reach each other's decode node.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from typing import NamedTuple

from gpufleet.twin import rdma, wire
from gpufleet.twin.nodefacts import log

ADMISSION_ATTEMPTS = 5
ADMISSION_BACKOFF = 0.2
"""Seconds before the second attempt; doubled each time."""
_TRANSIENT = ("busy", "cancelling")
_SOCKET_SECONDS = 60


class SenderConfig(NamedTuple):
    """What must agree with the decode node."""

    layout_version: int
    protocol_version: int
    transport: str
    tp: int
    default_port: int = 5556
    attempts: int = ADMISSION_ATTEMPTS


class Handover(NamedTuple):
    """One request bound for a decode node."""

    rid: str
    seq_len: int
    host: str
    port: int
    pieces: list[list[bytes]]
    """Its KV: ``pieces[shard][layer]``."""


class _Job:
    """A hand-over as one rank sees it: layers become ready while the sender shakes hands."""

    def __init__(self, handover: Handover) -> None:
        self.handover = handover
        self.layers: queue.Queue[int | None] = queue.Queue()


class Refusal(Exception):
    """The decode node did not admit a rank."""

    def __init__(self, reason: str, *, transient: bool) -> None:
        super().__init__(reason)
        self.transient = transient


class Sender:
    """Sends what the engine extracts, layer by layer, one request after the other on each rank."""

    def __init__(self, config: SenderConfig) -> None:
        self._config = config
        self._senders = wire.sender_ranks()
        self.shards = wire.shards()
        self._ranks = range(min(config.tp, self._senders))
        self._staging: list[list[bytes]] = [[b""] * rdma.LAYERS_PER_SHARD for _ in range(self.shards)]
        self._queues: list[queue.Queue[_Job]] = [queue.Queue() for _ in self._ranks]
        self._jobs: dict[str, list[_Job]] = {}
        for rank in self._ranks:
            threading.Thread(target=self._loop, args=(rank,), name=f"sender-{rank}", daemon=True).start()

    def handover(self, request_id: str, seq_len: int, params: dict[str, object], text: str) -> Handover:
        """What ``kv_transfer_params`` ask for."""
        handover = Handover(
            rid=wire.derive_rid(request_id),
            seq_len=seq_len,
            host=str(params["tilert_host"]),
            port=int(str(params.get("tilert_ctrl_port") or self._config.default_port)),
            pieces=rdma.cut(text.encode(), self.shards),
        )
        log(f"claimed {request_id} (rid={handover.rid}, {seq_len} tokens) -> {handover.host}:{handover.port}")
        return handover

    def layer_done(self, handover: Handover, layer: int) -> None:
        """Copy a finished layer into the staging buffer, over whatever lies there."""
        jobs = self._jobs.get(handover.rid) or self._start(handover)
        for shard in range(self.shards):
            self._staging[shard][layer] = handover.pieces[shard][layer]
        last = layer == rdma.LAYERS_PER_SHARD - 1
        for job in jobs:
            job.layers.put(layer)
            if last:
                job.layers.put(None)
        if last:
            self._jobs.pop(handover.rid, None)

    def _start(self, handover: Handover) -> list[_Job]:
        jobs = [_Job(handover) for _ in self._ranks]
        self._jobs[handover.rid] = jobs
        for job, ready in zip(jobs, self._queues, strict=True):
            ready.put(job)
        return jobs

    def _loop(self, rank: int) -> None:
        writer = rdma.Writer()
        while True:
            job = self._queues[rank].get()
            try:
                self._send(rank, job, writer)
            except (OSError, ValueError, KeyError, AssertionError) as error:
                log(f"send failed for {job.handover.rid} rank={rank}: {type(error).__name__}: {error}")

    def _send(self, rank: int, job: _Job, writer: rdma.Writer) -> None:
        started = time.monotonic()
        try:
            sock, hello, generation = self._admitted(rank, job.handover)
        except Refusal as refusal:
            log(f"dropping {job.handover.rid} rank={rank} ({refusal}): its shard was NOT transferred")
            return
        with sock:
            size = self._write_layers(rank, job, writer, hello)
            wire.send_msg(sock, {"done": True, "rid": job.handover.rid, "rank": rank, "generation": generation})
        spent = 1000 * (time.monotonic() - started)
        log(
            f"sent {job.handover.rid}: rank={rank} seq={job.handover.seq_len} gen={generation} "
            f"{size / 1e6:.1f} MB in {spent:.1f} ms"
        )

    def _write_layers(self, rank: int, job: _Job, writer: rdma.Writer, hello: wire.Message) -> int:
        bases = hello["kv_base"] if isinstance(hello["kv_base"], list) else [hello["kv_base"]]
        assert len(bases) == self.shards, f"decode has {len(bases)} shards, prefill {self.shards}"
        own = [rank] if self._senders > 1 else list(range(self.shards))
        size = 0
        while (layer := job.layers.get()) is not None:
            for shard in own:
                data = self._staging[shard][layer]
                writer.write(hello["nixl_meta"], rdma.layer_address(bases[shard], layer), data)
                size += len(data)
        return size

    def _admitted(self, rank: int, handover: Handover) -> tuple[socket.socket, wire.Message, int]:
        delay = ADMISSION_BACKOFF
        for attempt in range(1, self._config.attempts + 1):
            try:
                return self._shake_hands(rank, handover)
            except Refusal as refusal:
                if not refusal.transient or attempt == self._config.attempts:
                    raise
            log(
                f"retrying admission for {handover.rid} rank={rank} in {delay:.1f}s "
                f"(attempt {attempt}/{self._config.attempts})"
            )
            time.sleep(delay)
            delay *= 2
        raise Refusal("no attempts left", transient=False)

    def _shake_hands(self, rank: int, handover: Handover) -> tuple[socket.socket, wire.Message, int]:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(_SOCKET_SECONDS)
            sock.connect((handover.host, handover.port))
            hello = wire.recv_msg(sock)
            self._compare(hello, handover.seq_len)
            wire.send_msg(sock, self._request(rank, handover))
            reply = wire.recv_msg(sock)
        except BaseException:
            sock.close()
            raise
        if not reply.get("accepted"):
            sock.close()
            reason = str(reply.get("error"))
            log(f"decode node refused {handover.rid} rank={rank}: {reply}")
            raise Refusal(reason, transient=reason in _TRANSIENT)
        return sock, hello, int(reply["generation"])

    def _request(self, rank: int, handover: Handover) -> wire.Message:
        window = ADMISSION_BACKOFF * (2 ** max(0, self._config.attempts - 1) - 1)
        return {
            "rid": handover.rid,
            "rank": rank,
            "seq_len": handover.seq_len,
            "last_prompt_token": 0,
            "sampling": None,
            "admission_window_s": window,
        }

    def _compare(self, hello: wire.Message, seq_len: int) -> None:
        config = self._config
        assert hello.get("magic") == wire.MAGIC, f"bad hello: {hello}"
        theirs = hello.get("protocol_version", 1)
        assert theirs == config.protocol_version, (
            f"control-plane protocol mismatch: decode={theirs} vs prefill={config.protocol_version}; "
            "upgrade both ends together"
        )
        layout = hello.get("layout_version")
        assert layout == config.layout_version, f"layout version mismatch: {layout} vs {config.layout_version}"
        senders = int(hello.get("senders", 1) or 1)
        assert senders == self._senders, (
            f"sender-count mismatch: decode expects {senders} sender rank(s) but prefill has {self._senders}; "
            "set TILERT_PD_SENDERS to the same value on both roles"
        )
        transport = hello.get("transport")
        assert transport == config.transport, f"transport mismatch: decode={transport} vs prefill={config.transport}"
        limit = int(hello["max_seq_len"])
        assert seq_len <= limit, f"seq {seq_len} exceeds decode max_seq_len {limit}"
