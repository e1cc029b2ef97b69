"""Points at which a process can be killed: right before and right after each commit and each call to a provider."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gpufleet.engine.session import Session
from gpufleet.ledger.database import Database
from gpufleet.providers.base import Capabilities
from tests.engine.market import Odd, provider_of, take_the_place_of

CALLS = ("whoami", "offers", "create", "get", "inventory", "terminate")


@dataclass
class Points:
    """Counts points, and kills this process at one of them."""

    kill_at: int = 0
    """0: never."""
    after: bool = False
    seen: int = 0

    @contextmanager
    def point(self) -> Iterator[None]:
        self.seen += 1
        here = self.seen == self.kill_at
        if here and not self.after:
            os.kill(os.getpid(), signal.SIGKILL)
        yield
        if here:
            os.kill(os.getpid(), signal.SIGKILL)


class Watched(Odd):
    """The market, with a point around each call; looked at without its pauses."""

    def __init__(self, real: Any, points: Points) -> None:
        super().__init__(real)
        self.points = points

    @property
    def caps(self) -> Capabilities:
        return replace(self.real.caps, poll_seconds=0.005)

    def __getattribute__(self, name: str) -> Any:
        if name not in CALLS:
            return super().__getattribute__(name)
        call = getattr(self.real, name)
        points = self.points

        def watched(*arguments: Any) -> Any:
            with points.point():
                return call(*arguments)

        return watched


def watch(session: Session, points: Points, patch: pytest.MonkeyPatch) -> None:
    """Put points around every commit of the ledger and every call to the fleet's provider."""
    write = Database.write

    @contextmanager
    def watched(self: Database) -> Iterator[Any]:
        with write(self) as connection:
            yield connection
            if points.seen + 1 == points.kill_at and not points.after:
                os.kill(os.getpid(), signal.SIGKILL)  # all is said, and nothing is committed
        with points.point():
            pass

    patch.setattr(Database, "write", watched)
    take_the_place_of(session, Watched(provider_of(session), points))


def in_a_child(work: Callable[[], int]) -> int:
    """Run in a forked process; returns what it returned, or -9 when it was killed."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            code = work()
        except BaseException:  # noqa: BLE001 - told here, for nothing else of this process is
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)
