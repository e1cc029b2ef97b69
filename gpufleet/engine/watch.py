"""Tells whoever watches how each node gets on, and when it will be ready."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpufleet.domain.jobs import JobEvent, JobEventKind
from gpufleet.domain.nodes import NodeName
from gpufleet.domain.progress import Progress, ProgressSink, ProgressState

_RUNNING_STEPS = {JobEventKind.STEP_STARTED, JobEventKind.STEP_RETRIED, JobEventKind.PROGRESS}


@dataclass
class NodeWatch:
    """One node's way to ready: phases with their expected real seconds, in order."""

    node: NodeName | None
    sink: ProgressSink
    expected: Mapping[str, float] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)
    _phase: str = ""

    def phase(self, name: str, *, message: str = "") -> None:
        """A phase begins."""
        self._phase, self._began = name, time.monotonic()
        self._tell(ProgressState.RUNNING, message=message)

    def event(self, event: JobEvent) -> None:
        """A job of the running phase said something."""
        if event.kind in _RUNNING_STEPS:
            self._tell(ProgressState.RUNNING, step=event.step, percent=event.percent, message=event.message)

    def done(self, message: str = "") -> None:
        """The node is where it should be."""
        self.sink(Progress(self.node, "ready", ProgressState.DONE, message=message))

    def failed(self, message: str) -> None:
        """The node will not get there in this run."""
        self._tell(ProgressState.FAILED, message=message)

    def _tell(self, state: ProgressState, *, step: str = "", percent: float | None = None, message: str = "") -> None:
        self.sink(Progress(self.node, self._phase, state, step, percent, message, self._eta(percent)))

    def _eta(self, percent: float | None) -> float | None:
        if self._phase not in self.expected:
            return None
        names = list(self.expected)
        later = sum(self.expected[name] for name in names[names.index(self._phase) + 1 :])
        spent = time.monotonic() - self._began
        if percent:
            return later + spent * (100.0 - percent) / percent
        return later + max(0.0, self.expected[self._phase] - spent)
