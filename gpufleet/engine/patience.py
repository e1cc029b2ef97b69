"""Making a call again that was surely refused before it did anything: too many requests, or never sent at all."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import TypeVar

from gpufleet.domain.nodes import NodeName
from gpufleet.engine.session import Session
from gpufleet.errors import Interrupted
from gpufleet.providers.errors import NotSent, RateLimited

T = TypeVar("T")
PATIENCE_SECONDS = 300.0
"""How long a create is made again, each time later and with a new key. A provider that asks for a longer wait has
refused it, for this run."""
_LATER = 1.5
_LEAST_PAUSE = 0.1
_NOT_SENT_PAUSE = 0.5
_LONGEST_PAUSE = 60.0


def patiently(session: Session, node: NodeName, call: Callable[[], T]) -> T:
    """Call until it is neither `RateLimited` nor `NotSent`, or patience is over.

    Args:
        call: writes down a new intent each time.
        node: which node it is about, for the error.

    Raises:
        What ``call`` raises.
        Interrupted: the user asked to stop before the next call.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    for attempt in itertools.count():
        if session.stop.is_set():
            raise Interrupted("interrupted before renting the next node", where=str(node))
        try:
            return call()
        except (RateLimited, NotSent) as refusal:
            pause = _pause(refusal, attempt)
            if time.monotonic() + pause > deadline:
                raise
            session.stop.wait(pause)
    raise AssertionError("unreachable")


def _pause(refusal: RateLimited | NotSent, attempt: int) -> float:
    asked = max(_LEAST_PAUSE, refusal.retry_after) if isinstance(refusal, RateLimited) else _NOT_SENT_PAUSE
    return max(asked, min(asked * _LATER**attempt, _LONGEST_PAUSE))
