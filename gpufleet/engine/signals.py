"""Ctrl-C and SIGTERM set a flag; whoever waits looks at it. A create call in flight is always awaited and stored.

The second Ctrl-C during a long wait is left to Python's default handler: the intents on disk make that safe too.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def stop_on_signals(stop: threading.Event) -> Iterator[None]:
    """While active, SIGINT, SIGTERM and SIGHUP set ``stop``. Outside the main thread this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous: dict[int, Any] = {}

    def on_signal(signum: int, _frame: FrameType | None) -> None:
        stop.set()
        signal.signal(signum, previous[signum])

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        previous[number] = signal.signal(number, on_signal)
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
