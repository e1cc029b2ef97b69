"""One at a time: by priority, then by arrival."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import Any

from gpufleet.gate.replies import Refusal


class ClientGone(Exception):
    """The client hung up while it waited."""


class Turnstile:
    """Lets one holder in; the others wait."""

    def __init__(self) -> None:
        self._held = False
        self._refusal: Refusal | None = None
        self._order = itertools.count()
        self._queue: list[tuple[int, int, asyncio.Future[None]]] = []

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(not place.done() for _, _, place in self._queue)

    @property
    def held(self) -> bool:
        """Whether somebody is in."""
        return self._held

    @property
    def refusal(self) -> Refusal | None:
        """Why nobody may even wait, if so."""
        return self._refusal

    async def enter(self, priority: int, timeout_s: float, gone: asyncio.Event) -> None:
        """Wait for a turn; the one who got it must ``leave``.

        Raises:
            TimeoutError: not within ``timeout_s`` seconds.
            ClientGone: ``gone`` was set first.
            Refusal: the turnstile is shut, or was while waiting.
        """
        if self._refusal is not None:
            raise self._refusal
        if not self._held:
            self._held = True
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (priority, next(self._order), place))
        await self._wait(place, timeout_s, gone)

    async def _wait(self, place: asyncio.Future[None], timeout_s: float, gone: asyncio.Event) -> None:
        hangup = asyncio.ensure_future(gone.wait())
        either: set[asyncio.Future[Any]] = {place, hangup}
        try:
            await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._give_up(place)
            raise
        finally:
            hangup.cancel()
        if gone.is_set():
            self._give_up(place)
            raise ClientGone
        if not place.done():
            self._give_up(place)
            raise TimeoutError
        place.result()

    def _give_up(self, place: asyncio.Future[None]) -> None:
        """Leave the queue; a turn that came in the same moment goes to the next."""
        if not place.cancel() and place.exception() is None:
            self.leave()

    def leave(self) -> None:
        """Let the next one in."""
        while self._queue:
            place = heapq.heappop(self._queue)[2]
            if not place.done():
                place.set_result(None)
                return
        self._held = False

    def shut(self, refusal: Refusal) -> None:
        """Turn away all who wait or come, until ``unshut``."""
        self._refusal = refusal
        waiting, self._queue = self._queue, []
        for _, _, place in waiting:
            if not place.done():
                place.set_exception(refusal)

    def unshut(self) -> None:
        """Let them come again."""
        self._refusal = None
