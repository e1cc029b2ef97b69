"""Ctrl-C and SIGTERM set a flag; whoever waits looks at it. A create call in flight is always awaited and stored.

The second one raises KeyboardInterrupt at once: the intents on disk make that safe too. A signal that was ignored when
we started (``nohup``, a job in the background of a script) stays ignored.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def stop_on_signals(stop: threading.Event) -> Iterator[None]:
    """While active, SIGINT, SIGTERM and SIGHUP set ``stop``. Outside the main thread this does nothing."""

    def on_signal(_signum: int, _frame: FrameType | None) -> None:
        stop.set()
        for number in _STOPS:
            if signal.getsignal(number) is on_signal:
                signal.signal(number, signal.default_int_handler)

    with _handled_by(on_signal):
        yield


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """While active, SIGTERM and SIGHUP raise KeyboardInterrupt, as SIGINT does: so that they too are told."""
    with _handled_by(signal.default_int_handler):
        yield


@contextmanager
def signals_ignored() -> Iterator[None]:
    """While active, none of the three does anything: for an end that must happen whatever is sent."""
    with _handled_by(signal.SIG_IGN):
        yield


@contextmanager
def _handled_by(handler: _Handler | signal.Handlers) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous: dict[int, Any] = {}
    for stop in _STOPS:
        if signal.getsignal(stop) is not signal.SIG_IGN:
            previous[stop] = signal.signal(stop, handler)
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
