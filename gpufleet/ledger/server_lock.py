"""The fleet lock of a ledger in PostgreSQL: held by a session of its own, freed by the server when that ends."""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy import URL, Connection, create_engine, text
from sqlalchemy.pool import NullPool

from gpufleet.errors import GpufleetError
from gpufleet.ledger.database import explained

_KEEPALIVES = {"keepalives": 1, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}


class ServerLock:
    """A session-level advisory lock."""

    def __init__(self, url: URL, fleet: str, key: int) -> None:
        self._url = url
        self._fleet = fleet
        self._key = key
        self._taken = False
        engine = create_engine(
            url, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": 15, **_KEEPALIVES}
        )
        with explained(url):
            self._connection: Connection = engine.connect()
            self._run("create table if not exists lock_holders (fleet varchar(64) primary key, holder text not null)")

    def take(self) -> bool:
        """Try once."""
        self._taken = bool(self._run("select pg_try_advisory_lock(:key)", key=self._key))
        return self._taken

    def held_elsewhere(self) -> bool:
        """Whether somebody holds it; asked by taking it shared for an instant."""
        if not self._run("select pg_try_advisory_lock_shared(:key)", key=self._key):
            return True
        self._run("select pg_advisory_unlock_shared(:key)", key=self._key)
        return False

    def sign(self, text_: str) -> None:
        """Say who holds it."""
        self._run(
            "insert into lock_holders (fleet, holder) values (:fleet, :holder)"
            " on conflict (fleet) do update set holder = excluded.holder returning 1",
            fleet=self._fleet,
            holder=text_,
        )

    def signature(self) -> str:
        """Who took it last."""
        return str(self._run("select holder from lock_holders where fleet = :fleet", fleet=self._fleet) or "")

    def release(self) -> None:
        """Free it. The end of the session would too, but only once the server has noticed that."""
        if self._taken:
            with suppress(GpufleetError):  # the server is away, and the lock with it
                self._run("select pg_advisory_unlock(:key)", key=self._key)
        self._connection.close()

    def _run(self, statement: str, **values: object) -> object:
        with explained(self._url):
            result = self._connection.execute(text(statement), values)
            return result.scalar() if result.returns_rows else None
