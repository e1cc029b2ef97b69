"""Fleets, events and runs: what was asked for, and what happened."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, delete, insert, select, union, update

from gpufleet.domain.nodes import NodeName
from gpufleet.ledger.database import Database
from gpufleet.ledger.errors import LedgerConflict
from gpufleet.ledger.records import OPEN_INTENTS, Event, FleetRecord, Run
from gpufleet.ledger.schema import ACCOUNTS, EVENTS, FACTS, FLEETS, INTENTS, OBLIGATIONS, RENTALS, RUNS

Clock = Callable[[], datetime]
OWNER_LENGTH = 4
_OWNER = "owner"
_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"


def utc_now() -> datetime:
    """The wall clock, aware."""
    return datetime.now(UTC)


class Journal:
    """The part of the store that only ever grows, and the base of the others."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._db = database
        self._now = clock

    def owner_id(self) -> str:
        """Whose ledger this is: part of every key, so that two of them tell their instances apart at one account."""
        with self._db.read() as connection:
            known = _fact(connection, _OWNER)
        if known is not None:
            return known
        with self._db.write() as connection:
            known = _fact(connection, _OWNER)
            if known is None:
                known = "".join(secrets.choice(_BASE32) for _ in range(OWNER_LENGTH))
                connection.execute(insert(FACTS).values(name=_OWNER, value=known))
            return known

    def save_fleet(self, name: str, spec_text: str, spec_path: str) -> None:
        """Remember the fleet file's text (references to secrets only) and place."""
        row = {"spec_text": spec_text, "spec_path": spec_path, "updated_at": self._now()}
        with self._db.write() as connection:
            changed = connection.execute(update(FLEETS).where(FLEETS.c.name == name).values(row))
            if not changed.rowcount:
                connection.execute(insert(FLEETS).values(name=name, **row))

    def set_running(self, name: str, *, running: bool) -> None:
        """Remember whether a fleet is to run; one that is not is asked for no counts any more."""
        row: dict[str, Any] = {"running": running}
        if not running:
            row |= {"asked": {}, "asked_at": None}
        with self._db.write() as connection:
            connection.execute(update(FLEETS).where(FLEETS.c.name == name).values(row))

    def set_asked(self, name: str, counts: Mapping[str, int], of_file: Mapping[str, int]) -> None:
        """Remember the counts that an operator asked for now, and what the file said then."""
        row = {"asked": {"counts": dict(counts), "of_file": dict(of_file)}, "asked_at": self._now()}
        with self._db.write() as connection:
            connection.execute(update(FLEETS).where(FLEETS.c.name == name).values(row))

    def fleets(self) -> list[FleetRecord]:
        """Every fleet that was ever brought up from here, by name."""
        with self._db.read() as connection:
            rows = connection.execute(select(FLEETS).order_by(FLEETS.c.name))
            return [FleetRecord(**row) for row in rows.mappings()]

    def fleet(self, name: str) -> FleetRecord | None:
        """One fleet, or None when it was never brought up from here."""
        return next((fleet for fleet in self.fleets() if fleet.name == name), None)

    def bind_account(self, fleet: str, provider: str, account: str, options: Mapping[str, Any] | None = None) -> None:
        """Remember whose money the fleet spends there, and with which options of the fleet file it was reached.

        Raises:
            LedgerConflict: something of another account is still open. With other credentials every listing would
                look empty, and everything would seem gone.
        """
        with self._db.write() as connection:
            known = _account(connection, fleet, provider)
            if (known, _options(connection, fleet, provider)) == (account, dict(options or {})):
                return
            if known not in {None, account} and _owes(connection, fleet, provider):
                raise LedgerConflict(
                    f"{provider} knows these credentials as account {account}; the fleet was rented with {known}",
                    hint=f"use the credentials of {known} until `gpufleet down` has finished",
                )
            connection.execute(delete(ACCOUNTS).where(ACCOUNTS.c.fleet == fleet, ACCOUNTS.c.provider == provider))
            row = {"fleet": fleet, "provider": provider, "account": account, "options": dict(options or {})}
            connection.execute(insert(ACCOUNTS).values(row))

    def account_of(self, fleet: str, provider: str) -> str | None:
        """The account that `bind_account` remembered."""
        with self._db.read() as connection:
            return _account(connection, fleet, provider)

    def provider_options(self, fleet: str, provider: str) -> Mapping[str, Any] | None:
        """The options that `bind_account` remembered: what ends the fleet's rentals once the file lacks them.

        They hold references to secrets, never their values. None when the fleet never used this provider.
        """
        with self._db.read() as connection:
            return _options(connection, fleet, provider)

    def owing_providers(self, fleet: str) -> list[str]:
        """Where something of the fleet is not confirmed gone, or a create call of unknown outcome may have made it."""
        wanted = union(
            select(RENTALS.c.provider).where(RENTALS.c.fleet == fleet, RENTALS.c.ended_at.is_(None)),
            select(OBLIGATIONS.c.provider).where(OBLIGATIONS.c.fleet == fleet, OBLIGATIONS.c.closed_at.is_(None)),
            select(INTENTS.c.provider).where(INTENTS.c.fleet == fleet, INTENTS.c.state.in_(list(OPEN_INTENTS))),
        )
        with self._db.read() as connection:
            return sorted(connection.execute(wanted).scalars())

    def log_event(self, fleet: str, node: NodeName | None, kind: str, data: Mapping[str, Any] | None = None) -> None:
        """Append what happened. ``data`` is plain JSON and never holds a secret."""
        with self._db.write() as connection:
            self._log(connection, fleet, node, kind, data or {})

    def events(self, fleet: str, *, limit: int = 1000) -> list[Event]:
        """The last events of a fleet, oldest first."""
        newest = select(EVENTS).where(EVENTS.c.fleet == fleet).order_by(EVENTS.c.event_id.desc()).limit(limit)
        with self._db.read() as connection:
            return [Event(**row) for row in reversed(connection.execute(newest).mappings().all())]

    def begin_run(self, fleet: str, command: str) -> int:
        """Note that a command begins; returns the run's id."""
        row = {"fleet": fleet, "command": command, "started_at": self._now()}
        with self._db.write() as connection:
            created: int = connection.execute(insert(RUNS).values(row).returning(RUNS.c.run_id)).scalar_one()
            return created

    def end_run(self, run_id: int, outcome: str) -> None:
        """Note how a command ended: ``ok``, or the name of its error."""
        with self._db.write() as connection:
            ended = {"ended_at": self._now(), "outcome": outcome}
            connection.execute(update(RUNS).where(RUNS.c.run_id == run_id).values(ended))

    def runs(self, fleet: str) -> list[Run]:
        """Every run, oldest first; one without an outcome still runs or was killed."""
        with self._db.read() as connection:
            rows = connection.execute(select(RUNS).where(RUNS.c.fleet == fleet).order_by(RUNS.c.run_id))
            return [Run(**row) for row in rows.mappings()]

    def _log(
        self, connection: Connection, fleet: str, node: NodeName | None, kind: str, data: Mapping[str, Any]
    ) -> None:
        row = {"at": self._now(), "fleet": fleet, "node": node, "kind": kind, "data": dict(data)}
        connection.execute(insert(EVENTS).values(row))


def _fact(connection: Connection, name: str) -> str | None:
    value: str | None = connection.execute(select(FACTS.c.value).where(FACTS.c.name == name)).scalar()
    return value


def _account(connection: Connection, fleet: str, provider: str) -> str | None:
    wanted = select(ACCOUNTS.c.account).where(ACCOUNTS.c.fleet == fleet, ACCOUNTS.c.provider == provider)
    account: str | None = connection.execute(wanted).scalar()
    return account


def _options(connection: Connection, fleet: str, provider: str) -> Mapping[str, Any] | None:
    wanted = select(ACCOUNTS.c.options).where(ACCOUNTS.c.fleet == fleet, ACCOUNTS.c.provider == provider)
    options: Mapping[str, Any] | None = connection.execute(wanted).scalar()
    return options


def _owes(connection: Connection, fleet: str, provider: str) -> bool:
    """Whether something is not confirmed gone there, or a create call of unknown outcome may have made something."""
    open_ones = select(OBLIGATIONS.c.obligation_id).where(
        OBLIGATIONS.c.fleet == fleet, OBLIGATIONS.c.provider == provider, OBLIGATIONS.c.closed_at.is_(None)
    )
    unclear = select(INTENTS.c.key).where(
        INTENTS.c.fleet == fleet, INTENTS.c.provider == provider, INTENTS.c.state.in_(list(OPEN_INTENTS))
    )
    return any(connection.execute(wanted).first() is not None for wanted in (open_ones, unclear))
