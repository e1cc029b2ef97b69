"""Events that a job on a node reports while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class JobEventKind(StrEnum):
    """What a line of a job's event log says."""

    FINGERPRINT = "fingerprint"
    """The node as it is: ``data`` holds GPUs, driver, disk, RAM, RDMA ports, versions."""
    STEP_STARTED = "step-started"
    STEP_SKIPPED = "step-skipped"
    """Finished earlier with the same inputs, or its ``unless`` holds."""
    STEP_DONE = "step-done"
    STEP_FAILED = "step-failed"
    """``message`` holds the end of the step's output."""
    STEP_RETRIED = "step-retried"
    PROGRESS = "progress"
    """``percent`` of the running step."""
    JOB_DONE = "job-done"
    JOB_FAILED = "job-failed"


@dataclass(frozen=True)
class JobEvent:
    """One line of the log."""

    kind: JobEventKind
    job: str
    step: str = ""
    percent: float | None = None
    message: str = ""
    at: float = 0.0
    """Unix time on the node."""
    data: Mapping[str, str] = field(default_factory=dict)
