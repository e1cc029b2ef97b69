"""What each node is doing right now, gathered from progress events. Safe to feed from several threads at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpufleet.domain.nodes import NodeName
from gpufleet.domain.progress import Progress, ProgressState

FINAL_PHASES = frozenset({"ready", "confirm"})
"""A node whose phase of this name is done needs no more watching."""
_ENDING = frozenset({"terminate", "release", "confirm"})
"""What follows a failure, and must not hide it."""


@dataclass(frozen=True)
class Row:
    """The newest event of a node, and when (in seconds of the board's clock) the node and its phase began."""

    last: Progress
    node_started: float
    phase_started: float
    ready_at: float | None
    """When the node should be ready, by its last estimate; None when nobody said."""

    @property
    def node(self) -> NodeName | None:
        return self.last.node

    @property
    def finished(self) -> bool:
        return self.last.state is ProgressState.DONE and self.last.phase in FINAL_PHASES

    @property
    def failed(self) -> bool:
        return self.last.state is ProgressState.FAILED


class Board:
    """All rows of one run.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._rows: dict[NodeName | None, Row] = {}
        self._lock = threading.Lock()

    @property
    def now(self) -> float:
        return self._clock()

    @property
    def elapsed(self) -> float:
        """Seconds since the board was made."""
        return self.now - self._started

    def update(self, event: Progress) -> None:
        """Take an event in."""
        now = self.now
        with self._lock:
            before = self._rows.get(event.node)
            if before is None or not (before.failed and event.phase in _ENDING):
                self._rows[event.node] = _next(before, event, now)

    def settle(self) -> None:
        """The run succeeded: what nobody reported as done is done too."""
        with self._lock:
            for node, row in self._rows.items():
                if row.last.state is ProgressState.RUNNING:
                    self._rows[node] = replace(row, last=replace(row.last, state=ProgressState.DONE, percent=None))

    def rows(self) -> list[Row]:
        """The fleet's own row first, then nodes by name."""
        with self._lock:
            rows = list(self._rows.values())
        return sorted(rows, key=lambda row: (row.node is not None, row.node or NodeName("", 0)))

    def node_rows(self) -> list[Row]:
        """Rows of nodes only."""
        return [row for row in self.rows() if row.node is not None]


def _next(before: Row | None, event: Progress, now: float) -> Row:
    ready_at = None if event.eta_seconds is None else now + event.eta_seconds
    if before is None:
        return Row(event, now, now, ready_at)
    if before.last.phase != event.phase:
        return Row(event, before.node_started, now, ready_at or before.ready_at)
    merged = replace(event, step=event.step or before.last.step, percent=_percent(before.last, event))
    return Row(merged, before.node_started, before.phase_started, ready_at or before.ready_at)


def _percent(before: Progress, event: Progress) -> float | None:
    """The same step keeps its percentage when an event brings none."""
    same_step = not event.step or event.step == before.step
    if event.percent is None and same_step and event.state is ProgressState.RUNNING:
        return before.percent
    return event.percent
