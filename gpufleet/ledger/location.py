"""Where a ledger is: a state directory, a SQLite file or a database URL."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from gpufleet.errors import UsageError

_FILE_SUFFIXES = {".db", ".sqlite", ".sqlite3"}


def ledger_url(location: Path | str) -> URL:
    """``postgresql://...``, ``sqlite:///file``, a file that ends in .db, or a directory (then ``ledger.db`` in it).

    Raises:
        UsageError: a URL of another kind, or SQLite without a file.
    """
    if isinstance(location, Path) or "://" not in location:
        path = Path(location).expanduser().absolute()
        return URL.create("sqlite", database=str(path if path.suffix in _FILE_SUFFIXES else path / "ledger.db"))
    try:
        url = make_url(location)
    except ArgumentError as error:
        raise UsageError("the ledger's URL cannot be read", hint="postgresql://user@host/database") from error
    return _checked(url)


def _checked(url: URL) -> URL:
    backend = url.get_backend_name()
    if backend == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise UsageError(f"the ledger cannot be kept in {backend}", hint="use PostgreSQL, or a file for SQLite")
    if not url.database or url.database == ":memory:":
        raise UsageError("a ledger in memory would forget what is rented", hint="name a file")
    return url


def file_of(url: URL) -> Path | None:
    """The SQLite file, or None for a server or a ``file:`` URI."""
    if url.get_backend_name() != "sqlite" or url.query.get("uri"):
        return None
    return Path(url.database or "")


def shown(url: URL) -> str:
    """The place as it may be printed: never with a password."""
    return str(file_of(url) or url.render_as_string(hide_password=True))
