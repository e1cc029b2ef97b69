"""Tells whoever watches how each node gets on, and when it will be ready."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpufleet.domain.jobs import JobEvent, JobEventKind
from gpufleet.domain.nodes import NodeName
from gpufleet.domain.progress import Progress, ProgressSink, ProgressState
from gpufleet.errors import GpufleetError

WAIT = "wait"
"""The phase of a node that has nothing to do until another one is ready."""
EVIDENCE_PERCENT = 5.0
"""From here on a percentage is believed when it says that more time is left than was thought."""
_RUNNING_STEPS = {JobEventKind.STEP_STARTED, JobEventKind.STEP_RETRIED, JobEventKind.PROGRESS}


@dataclass
class _Phase:
    """A phase that runs now. The percentage is that of its running step."""

    began: float
    step: str = ""
    percent: float | None = None


@dataclass
class NodeWatch:
    """One node's way to ready: phases with their expected real seconds, in order. Safe to use from many threads.

    Of phases that run at once the one that comes last in the order is told.
    """

    node: NodeName | None
    sink: ProgressSink
    expected: Mapping[str, float] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    _running: dict[str, _Phase] = field(default_factory=dict)
    _begun: set[str] = field(default_factory=set)
    _jobs: dict[str, str] = field(default_factory=dict)
    _failing: str = ""
    """The phase that just broke, for `failed` to name."""
    _failed: bool = False
    _ready_at: float | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def phase(self, name: str, *, message: str = "") -> None:
        """A phase begins, and whatever ran before has ended. One outside the order (rent) begins all over."""
        with self._lock:
            names = list(self.expected)
            self._begun = set(names[: names.index(name) + 1]) if name in names else set()
            self._ready_at = self._ready_at if name in names else None
            self._running, self._failing, self._failed = {name: _Phase(self.clock())}, "", False
            self._tell(name, message=message)

    @contextmanager
    def alongside(self, name: str, job: str) -> Iterator[None]:
        """While active, a phase runs beside others; the events of ``job`` are its own. Then the node may wait."""
        with self._lock:
            self._jobs[job] = name
            self._drop(WAIT, *(phase for phase in self._running if phase not in self._jobs.values()))
            self._begun.add(name)
            self._running[name] = _Phase(self.clock())
            self._tell(name)
        try:
            yield
        except GpufleetError:
            self._failing = name
            raise
        with self._lock:
            if self._failing or self._failed:
                return
            self._drop(name)
            if not self._running:
                self._running[WAIT] = _Phase(self.clock())
            self._tell(self._main(), message="" if WAIT not in self._running else "for other nodes")

    def event(self, event: JobEvent) -> None:
        """A job said something; it belongs to the phase that began with this job, else to the one that runs."""
        if event.kind not in _RUNNING_STEPS:
            return
        with self._lock:
            phase = self._jobs.get(event.job) or self._main()
            if phase not in self._running:
                return
            running = self._running[phase]
            if event.percent is not None or event.step not in {"", running.step}:
                running.percent = event.percent
            running.step = event.step or running.step
            if phase == self._main():
                self._tell(phase, message=event.message)

    def done(self, message: str = "") -> None:
        """The node is where it should be."""
        self.sink(Progress(self.node, "ready", ProgressState.DONE, message=message))

    def failed(self, message: str) -> None:
        """The node will not get there, unless it begins again; what still runs on it is not told any more."""
        with self._lock:
            if not self._failed:
                told = message.removeprefix(f"{self.node}: ")
                self.sink(Progress(self.node, self._failing or self._main(), ProgressState.FAILED, message=told))
            self._failed = True
            self._running.clear()

    def _drop(self, *names: str) -> None:
        for name in names:
            self._running.pop(name, None)

    def _main(self) -> str:
        """The phase to tell: of those that run the last one in the order."""
        order = {name: place for place, name in enumerate(self.expected)}
        return max(self._running, key=lambda name: order.get(name, -1), default="")

    def _tell(self, name: str, *, message: str = "") -> None:
        phase = self._running[name]
        eta = self._eta()
        self.sink(Progress(self.node, name, ProgressState.RUNNING, phase.step, phase.percent, message, eta))

    def _eta(self) -> float | None:
        """Seconds to ready. An estimate grows on the evidence of a percentage alone, so that it does not flicker."""
        if not self.expected:
            return None
        now = self.clock()
        later = sum(seconds for name, seconds in self.expected.items() if name not in self._begun)
        found = now + later + max((self._left(name, now) for name in self._running), default=0.0)
        evidence = any((phase.percent or 0.0) >= EVIDENCE_PERCENT for phase in self._running.values())
        if self._ready_at is None or found < self._ready_at or evidence:
            self._ready_at = found
        return max(0.0, self._ready_at - now)

    def _left(self, name: str, now: float) -> float:
        phase = self._running[name]
        spent = now - phase.began
        if phase.percent and phase.percent >= EVIDENCE_PERCENT:
            return spent * (100.0 - phase.percent) / phase.percent
        return max(0.0, self.expected.get(name, 0.0) - spent)
