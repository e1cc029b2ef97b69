"""Points at which a process can be killed: right before and right after each commit and each call to a provider."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gpufleet.engine.session import Session
from gpufleet.ledger.database import Database
from gpufleet.providers.mock.provider import MockProvider
from tests.engine.market import provider_of

CALLS = (
    *("whoami", "offers", "create", "get", "inventory", "terminate"),
    *("create_cluster", "clusters", "cluster", "delete_cluster", "extras", "delete_extra", "ensure_ssh_key"),
)


@dataclass
class Points:
    """Counts points, and kills this process at one of them. Threads come to theirs in any order."""

    kill_at: int = 0
    """0: never."""
    after: bool = False
    seen: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def point(self) -> Iterator[None]:
        here = self.comes()
        if here and not self.after:
            die()
        yield
        if here:
            die()

    def comes(self) -> bool:
        """Count one; whether it is the one."""
        with self._lock:
            self.seen += 1
            return self.seen == self.kill_at


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def watch(session: Session, points: Points, patch: pytest.MonkeyPatch) -> None:
    """Put points around every commit of the ledger and every call to the fleet's provider, and leave out its pauses."""
    write = Database.write

    @contextmanager
    def watched_write(self: Database) -> Iterator[Any]:
        with write(self) as connection:
            yield connection
            here = points.comes()
            if here and not points.after:
                die()  # all is said, and nothing is committed
        if here:
            die()

    patch.setattr(Database, "write", watched_write)
    provider = provider_of(session)
    for name in CALLS:
        if (call := getattr(provider, name, None)) is not None:
            patch.setattr(provider, name, _watched(call, points), raising=False)
    caps = MockProvider.caps.fget
    assert caps is not None
    patch.setattr(MockProvider, "caps", property(lambda self: replace(caps(self), poll_seconds=0.005)))


def _watched(call: Callable[..., Any], points: Points) -> Callable[..., Any]:
    def watched(*arguments: Any) -> Any:
        with points.point():
            return call(*arguments)

    return watched


CRASHED = 251
"""What `in_a_child` returns where an error was raised that nobody means to raise."""


def in_a_child(work: Callable[[], int]) -> int:
    """Run in a forked process; returns what it returned (at most 250), -9 when it was killed, or `CRASHED`."""
    pid = os.fork()
    if pid == 0:
        code = CRASHED
        try:
            code = work()
        except BaseException:  # noqa: BLE001 - told here, for nothing else of this process is
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)
