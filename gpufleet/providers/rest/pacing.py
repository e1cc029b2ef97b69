"""Turns: least times between calls, for one operation and for all of them together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from decimal import Decimal

ALL = "*"


class Pacer:
    """Hands out turns in order; safe to use from many threads. One per provider and process."""

    def __init__(self, seconds: Mapping[str, Decimal], clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = {name: float(gap) for name, gap in seconds.items()}
        self._clock = clock
        self._free_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def take_turn(self, operation: str) -> float:
        """Take the next free turn of an operation; returns the seconds until it comes."""
        names = [name for name in (operation, ALL) if name in self._seconds]
        with self._lock:
            now = self._clock()
            at = max([now, *(self._free_at.get(name, now) for name in names)])
            for name in names:
                self._free_at[name] = at + self._seconds[name]
            return at - now

    def hold_back(self, operation: str, seconds: float) -> None:
        """No turn for this operation before so many seconds are over: the provider said so."""
        with self._lock:
            at = self._clock() + seconds
            self._seconds.setdefault(operation, 0.0)
            self._free_at[operation] = max(at, self._free_at.get(operation, at))
