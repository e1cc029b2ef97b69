"""One run per fleet at a time: a kernel lock on a file, or an advisory lock in PostgreSQL.

Both are freed by the kernel or the server when the holder dies, however it dies; nothing expires by time.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING

from gpufleet.errors import FleetBusy
from gpufleet.ledger.errors import LedgerUnwritable
from gpufleet.ledger.location import file_of, ledger_url

if TYPE_CHECKING:
    from gpufleet.ledger.server_lock import ServerLock

_POLL_SECONDS = 0.1
_LEAST_WAIT_SECONDS = 0.3
"""A look at the holder takes the lock for an instant; that must not make a run fail."""


@dataclass(frozen=True)
class Holder:
    """Who holds a fleet."""

    pid: int
    host: str
    command: str
    since: str
    """UTC, ISO 8601."""

    def __str__(self) -> str:
        return f"`gpufleet {self.command}` (process {self.pid} on {self.host}), since {self.since}"


@contextmanager
def fleet_lock(location: Path | str, fleet: str, *, command: str, wait: float | None = None) -> Iterator[None]:
    """Hold a fleet for as long as the body runs.

    Args:
        location: as for `Store.open`.
        command: what this run does, for others to read.
        wait: seconds to wait for another run's end; None or 0 does not wait.

    Raises:
        FleetBusy: another run holds it; says who, since when, and what to do.
        LedgerUnwritable: the lock file cannot be made, or the server is away.
    """
    lock = _lock(location, fleet)
    try:
        _acquire(lock, fleet, max(wait or 0.0, _LEAST_WAIT_SECONDS))
        since = datetime.now(UTC).isoformat(timespec="seconds")
        lock.sign(json.dumps(asdict(Holder(os.getpid(), socket.gethostname(), command, since))))
        yield
    finally:
        lock.release()


def holder(location: Path | str, fleet: str) -> Holder | None:
    """Who holds the fleet now; None when nobody does."""
    lock = _lock(location, fleet)
    try:
        return _read(lock.signature()) if lock.held_elsewhere() else None
    finally:
        lock.release()


def _acquire(lock: FileLock | ServerLock, fleet: str, wait: float) -> None:
    deadline = time.monotonic() + wait
    while not lock.take():
        if time.monotonic() >= deadline:
            raise _busy(fleet, _read(lock.signature()))
        time.sleep(_POLL_SECONDS)


def _busy(fleet: str, who: Holder) -> FleetBusy:
    stop = f", or stop it with: kill {who.pid}" if who.host == socket.gethostname() and who.pid else ""
    return FleetBusy(f"fleet {fleet} is held by {who}", hint=f"wait until it ends{stop}")


def _read(signature: str) -> Holder:
    try:
        return Holder(**json.loads(signature))
    except (ValueError, TypeError):  # read in the instant between taking and signing
        return Holder(0, "unknown host", "?", "just now")


def _lock(location: Path | str, fleet: str) -> FileLock | ServerLock:
    url = ledger_url(location)
    path = file_of(url)
    if path is not None:
        return FileLock(path.parent / "locks" / f"{fleet}.lock")
    from gpufleet.ledger.server_lock import ServerLock

    key = int.from_bytes(hashlib.sha256(f"gpufleet {fleet}".encode()).digest()[:8], "big", signed=True)
    return ServerLock(url, fleet, key)


class FileLock:
    """`flock` on a file that also says who holds it. The file stays: unlinking it would race with the next taker."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file: IO[str] = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="utf-8")
        except OSError as error:
            raise LedgerUnwritable(
                f"the fleet cannot be locked: {error.strerror}", where=str(path), hint="choose another state directory"
            ) from error

    def take(self) -> bool:
        """Try once."""
        return self._flock(fcntl.LOCK_EX)

    def held_elsewhere(self) -> bool:
        """Whether somebody else holds it. Shared, so that two who look do not see each other."""
        return not self._flock(fcntl.LOCK_SH)

    def sign(self, text: str) -> None:
        """Say who holds it."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(text)
        self._file.flush()

    def signature(self) -> str:
        """Who took it last."""
        self._file.seek(0)
        return self._file.read()

    def release(self) -> None:
        """Closing the descriptor frees the lock."""
        self._file.close()

    def _flock(self, how: int) -> bool:
        try:
            fcntl.flock(self._file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
