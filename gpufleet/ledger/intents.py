"""Create calls, written down before they are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, RowMapping, func, insert, select, update

from gpufleet.ledger.errors import LedgerConflict
from gpufleet.ledger.journal import Journal
from gpufleet.ledger.records import HAS_RENTAL, LATE, OPEN_INTENTS, Intent, IntentRecord, IntentState
from gpufleet.ledger.schema import INTENTS, RENTALS


class Intents(Journal):
    """The write-ahead part of the store."""

    def open_intent(self, intent: Intent) -> None:
        """Write a create call down. It is on disk once this returns.

        Raises:
            LedgerConflict: the key was used before.
        """
        row = {**intent_columns(intent), "state": IntentState.PREPARED, "opened_at": self._now()}
        with self._db.write() as connection:
            if find_intent(connection, intent.key) is not None:
                raise LedgerConflict(f"the key {intent.key} was used before; every attempt needs a new one")
            connection.execute(insert(INTENTS).values(row))
            self._log(
                connection, intent.fleet, intent.node, "intent-opened", {"key": intent.key, "offer": intent.offer_id}
            )

    def mark_sent(self, key: str) -> None:
        """Write down that the call leaves now. Must come right before the call; from here on it may have happened.

        Raises:
            LedgerConflict: it was marked before. A create call is never sent twice.
        """
        with self._db.write() as connection:
            known = known_intent(connection, key)
            if known.state is not IntentState.PREPARED:
                raise LedgerConflict(f"the create call {key} is {known.state} and must not be sent again")
            self._move(connection, known, {"state": IntentState.SENT, "sent_at": self._now()})

    def settle_intent(self, key: str, outcome: IntentState, error: str | None = None) -> None:
        """Write down what became of a call that left no rental (`record_rental` settles those that did).

        Raises:
            LedgerConflict: a rental is recorded for it and the outcome denies that, or the reverse.
        """
        with self._db.write() as connection:
            known = known_intent(connection, key)
            if (outcome in HAS_RENTAL) is not _has_rental(connection, key):
                raise LedgerConflict(f"the create call {key} is {known.state} and cannot become {outcome}")
            if known.state in HAS_RENTAL:
                return
            if outcome in {IntentState.PREPARED, IntentState.SENT}:
                raise LedgerConflict(f"{outcome} is no outcome of a create call")
            self._move(connection, known, {"state": outcome, "settled_at": self._now(), "error": error})

    def intents(self, fleet: str, states: Iterable[IntentState] = tuple(IntentState)) -> list[IntentRecord]:
        """Create calls of a fleet in these states, oldest first."""
        wanted = select(INTENTS).where(INTENTS.c.fleet == fleet, INTENTS.c.state.in_(list(states)))
        with self._db.read() as connection:
            rows = connection.execute(wanted.order_by(INTENTS.c.opened_at, INTENTS.c.key))
            return [_record(row) for row in rows.mappings()]

    def open_intents(self, fleet: str) -> list[IntentRecord]:
        """Calls whose outcome is not known yet."""
        return self.intents(fleet, OPEN_INTENTS)

    def recent_creates(self, fleet: str) -> list[IntentRecord]:
        """Calls that may have made more than is known: all that left within `LATE`, refused ones too."""
        wanted = select(INTENTS).where(
            INTENTS.c.fleet == fleet, INTENTS.c.sent_at >= self._now() - LATE, INTENTS.c.state != IntentState.NOT_SENT
        )
        with self._db.read() as connection:
            return [_record(row) for row in connection.execute(wanted.order_by(INTENTS.c.sent_at)).mappings()]

    def doubtful_providers(self, fleet: str) -> list[str]:
        """Where a recent call made nothing as far as is known: it may show up late, or have left a disk behind."""
        nothing = [i for i in self.recent_creates(fleet) if i.state not in HAS_RENTAL]
        return sorted({record.intent.provider for record in nothing})

    def sent_at(self, key: str) -> datetime | None:
        """When a create call left; None for one that never did, or that is not of this ledger."""
        with self._db.read() as connection:
            at: datetime | None = connection.execute(select(INTENTS.c.sent_at).where(INTENTS.c.key == key)).scalar()
            return at

    def pending_usd_per_hour(self, fleet: str) -> Decimal:
        """USD per hour that calls of unknown outcome may already cost."""
        open_ones = (record.intent for record in self.open_intents(fleet))
        return sum((intent.usd_per_hour * len(intent.nodes) for intent in open_ones), Decimal(0))

    def creates_since(self, fleet: str, at: datetime) -> int:
        """How many create calls left, or may have left, since then."""
        left = (INTENTS.c.fleet == fleet, INTENTS.c.sent_at >= at, INTENTS.c.state != IntentState.NOT_SENT)
        with self._db.read() as connection:
            return connection.execute(select(func.count()).select_from(INTENTS).where(*left)).scalar_one()

    def last_outcomes(self, fleet: str, provider: str, count: int) -> list[IntentRecord]:
        """The newest settled create calls there, the newest first."""
        wanted = select(INTENTS).where(
            INTENTS.c.fleet == fleet, INTENTS.c.provider == provider, INTENTS.c.settled_at.is_not(None)
        )
        with self._db.read() as connection:
            rows = connection.execute(wanted.order_by(INTENTS.c.settled_at.desc()).limit(count))
            return [_record(row) for row in rows.mappings()]

    def _move(self, connection: Connection, known: IntentRecord, values: Mapping[str, Any]) -> None:
        intent = known.intent
        connection.execute(update(INTENTS).where(INTENTS.c.key == intent.key).values(values))
        said = {"key": intent.key, "state": values["state"], "error": values.get("error")}
        self._log(connection, intent.fleet, intent.node, "intent", said)


def find_intent(connection: Connection, key: str) -> IntentRecord | None:
    """The intent with this key."""
    row = connection.execute(select(INTENTS).where(INTENTS.c.key == key)).mappings().first()
    return None if row is None else _record(row)


def known_intent(connection: Connection, key: str) -> IntentRecord:
    """The intent with this key.

    Raises:
        LedgerConflict: there is none.
    """
    record = find_intent(connection, key)
    if record is None:
        raise LedgerConflict(f"no create call with key {key} was written down before it was made")
    return record


def _has_rental(connection: Connection, key: str) -> bool:
    return connection.execute(select(RENTALS.c.rental_id).where(RENTALS.c.key == key)).first() is not None


def intent_columns(intent: Intent) -> dict[str, Any]:
    """The part of a row that says what is asked for."""
    return {field.name: getattr(intent, field.name) for field in fields(intent)}


def _record(row: RowMapping) -> IntentRecord:
    values = dict(row)
    outcome = {name: values.pop(name) for name in ("state", "opened_at", "sent_at", "settled_at", "error")}
    return IntentRecord(Intent(**values), **outcome)
