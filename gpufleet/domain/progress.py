"""What a long run tells whoever watches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from gpufleet.domain.nodes import NodeName


class ProgressState(StrEnum):
    """Where a phase of a node (or of the fleet) stands."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class Progress:
    """One change worth showing. ``node`` is None for what concerns the whole fleet (the router, the bill)."""

    node: NodeName | None
    phase: str
    """``rent``, ``boot``, ``connect``, ``check``, ``image``, ``weights``, ``convert``, ``share``, ``serve``, ``cell``,
    ``wait`` (for other nodes), ``ready``, ``drain``, ``terminate``, ``release``, ``confirm``; for the fleet ``plan``,
    ``router``, ``probe``, ``record``."""
    state: ProgressState = ProgressState.RUNNING
    step: str = ""
    """The step of the job that runs, for example ``download``."""
    percent: float | None = None
    message: str = ""
    eta_seconds: float | None = None
    """Expected seconds until this node is ready (or gone), None when unknown."""


ProgressSink = Callable[[Progress], None]
"""Called from several threads at once; must return fast and never raise."""
