"""One open database: durable transactions, one writer at a time, and failures told in words.

SQLite runs with WAL and ``synchronous=FULL``: a commit that has returned survives a crash and a power cut.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError, NoSuchModuleError

from gpufleet.errors import GpufleetError, UsageError
from gpufleet.ledger import schema
from gpufleet.ledger.errors import LedgerConflict, LedgerUnreadable, LedgerUnwritable
from gpufleet.ledger.location import file_of, shown

_UNREADABLE_HINT = "restore it from a copy; until then look at the provider's console for running nodes named gf-*"
_SQLITE_FAILURES: dict[int, tuple[type[GpufleetError], str, str]] = {
    sqlite3.SQLITE_BUSY: (LedgerUnwritable, "is locked by another process", "wait for the other run, then try again"),
    sqlite3.SQLITE_LOCKED: (LedgerUnwritable, "is locked by another process", "wait for the other run, then try again"),
    sqlite3.SQLITE_FULL: (LedgerUnwritable, "cannot grow: the disk is full", "free some space, then run this again"),
    sqlite3.SQLITE_IOERR: (LedgerUnwritable, "cannot be written: input/output error", "check the disk, then run again"),
    sqlite3.SQLITE_READONLY: (LedgerUnwritable, "is read-only", "make the file and its folder writable"),
    sqlite3.SQLITE_PERM: (LedgerUnwritable, "may not be opened", "make the file and its folder yours"),
    sqlite3.SQLITE_CANTOPEN: (LedgerUnwritable, "cannot be opened", "make the file and its folder writable"),
    sqlite3.SQLITE_CORRUPT: (LedgerUnreadable, "is damaged", _UNREADABLE_HINT),
    sqlite3.SQLITE_NOTADB: (LedgerUnreadable, "is not a ledger", _UNREADABLE_HINT),
}
_MIGRATION_LOCK = 0x67706673
"""Advisory lock under which a PostgreSQL ledger is created or migrated."""


class Database:
    """Transactions on the ledger's tables. Safe to use from several threads and processes at once."""

    def __init__(self, url: URL, *, busy_seconds: float = 30.0) -> None:
        self.url = url
        self._writing = threading.Lock()
        with explained(url):
            _prepare_file(file_of(url))
            self._engine = _engine(url, busy_seconds)
            self._bring_up_to_date()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent view.

        Raises:
            LedgerUnreadable, LedgerUnwritable: the database failed.
        """
        with explained(self.url), self._engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that is on disk once this returns, and undone when the body raises.

        Raises:
            LedgerUnreadable, LedgerUnwritable, LedgerConflict: nothing was written.
        """
        # Threads queue here in turn; SQLite's own busy handler only polls, and starves some of fifty.
        with self._writing, explained(self.url), self._engine.connect() as connection:
            connection.execution_options(writes=True)
            with connection.begin():
                yield connection

    def close(self) -> None:
        """Give the files or the server connections back."""
        self._engine.dispose()

    def _bring_up_to_date(self) -> None:
        with self.read() as connection:
            version = schema.version_of(connection)
        schema.check_not_newer(version)
        if version == schema.CURRENT_VERSION:
            return
        with self.write() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
            schema.migrate(connection)


def _prepare_file(path: Path | None) -> None:
    """Make the file ours alone before anything is written to it; SQLite gives its side files the same mode."""
    if path is None:
        return
    try:
        if not path.parent.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _create_private(path)
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
    except OSError as error:
        raise LedgerUnwritable(
            f"the ledger cannot be opened: {error.strerror}", where=str(path), hint="choose another state directory"
        ) from error


def _create_private(path: Path) -> None:
    # O_EXCL: closing a descriptor of a file that SQLite has open in this process would drop SQLite's locks.
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _engine(url: URL, busy_seconds: float) -> Engine:
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url, connect_args={"timeout": busy_seconds}, max_overflow=-1, hide_parameters=True)
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    try:
        return create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": 15}, hide_parameters=True)
    except (ImportError, NoSuchModuleError) as error:
        raise UsageError(
            "a ledger in PostgreSQL needs the psycopg driver", hint="pip install 'gpufleet[postgres]'"
        ) from error


def _configure_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # sqlite3 would begin transactions by itself, and too late
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    """Writers take the lock at once: a read that turns into a write fails instead of waiting."""
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def explained(url: URL) -> Iterator[None]:
    """Tell a database's failure in words.

    Raises:
        LedgerUnreadable, LedgerUnwritable, LedgerConflict: instead of the driver's error.
    """
    try:
        yield
    except DBAPIError as error:
        raise _in_words(error.orig, url) from error
    except sqlite3.Error as error:
        raise _in_words(error, url) from error


def _in_words(error: BaseException | None, url: URL) -> GpufleetError:
    if isinstance(error, sqlite3.IntegrityError):
        return LedgerConflict(f"the ledger refuses a contradiction: {error}", where=shown(url))
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        kind, what, hint = _SQLITE_FAILURES.get(code, (LedgerUnreadable, f"failed: {error}", _UNREADABLE_HINT))
        return kind(f"the ledger {what}", where=shown(url), hint=hint)
    if type(error).__name__.endswith("Violation"):
        return LedgerConflict(f"the ledger refuses a contradiction: {_first_line(error)}", where=shown(url))
    return LedgerUnwritable(
        f"the ledger's server failed: {_first_line(error)}",
        where=shown(url),
        hint="check that the server runs and that the URL is right",
    )


def _first_line(error: BaseException | None) -> str:
    return str(error).strip().partition("\n")[0]
