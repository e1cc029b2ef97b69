"""The ledger as the rest of gpufleet sees it."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from gpufleet.ledger.database import Database
from gpufleet.ledger.journal import Clock, utc_now
from gpufleet.ledger.location import ledger_url
from gpufleet.ledger.rentals import Rentals


class Store(Rentals):
    """Everything gpufleet must not forget. Every write is durable when its call returns.

    Methods may be called from several threads at once. A write that fails raises `LedgerUnwritable`,
    `LedgerUnreadable` or `LedgerConflict` and leaves nothing behind.
    """

    @classmethod
    def open(cls, location: Path | str, *, clock: Clock = utc_now, busy_seconds: float = 30.0) -> Self:
        """Open or create a ledger, and bring an older one up to date.

        Args:
            location: a state directory, a SQLite file that ends in ``.db``, or a database URL.
            busy_seconds: how long a write waits for another process's write.

        Raises:
            LedgerUnreadable: damaged, no ledger, or written by a later gpufleet.
            LedgerUnwritable: read-only, locked, full, or the server is away.
            UsageError: the location names something else.
        """
        return cls(Database(ledger_url(location), busy_seconds=busy_seconds), clock)

    def close(self) -> None:
        """Give files and connections back; nothing is flushed here, since everything already is on disk."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
