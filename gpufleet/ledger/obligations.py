"""What must still be ended, and the evidence that it has."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from decimal import Decimal

from sqlalchemy import Connection, RowMapping, and_, insert, or_, select, update

from gpufleet.domain.market import ExtraKind
from gpufleet.ledger.errors import LedgerConflict
from gpufleet.ledger.intents import Intents
from gpufleet.ledger.records import GONE_OBSERVATIONS, Obligation, ObligationState
from gpufleet.ledger.schema import OBLIGATIONS, RENTALS

INSTANCE = "instance"


class Obligations(Intents):
    """A rental is an obligation from its first moment; one is closed by evidence alone, and none is ever deleted."""

    def oblige(self, provider: str, ref: str, *, fleet: str, reason: str, kind: str = INSTANCE) -> Obligation:
        """Decide that a paid thing ends, and all that ends with it. Asking again changes nothing.

        Args:
            ref: the provider's id for it.
            reason: for people.
        """
        with self._db.write() as connection:
            return self._oblige(connection, provider, ref, fleet, reason, kind=kind)

    def hold(self, provider: str, ref: str, *, fleet: str, reason: str, kind: str) -> Obligation:
        """Write down something beside an instance that is to be ended some day, before or after it is made."""
        with self._db.write() as connection:
            held = ObligationState.HELD
            return self._oblige(connection, provider, ref, fleet, reason, kind=kind, state=held)

    def open_obligations(self, fleet: str | None = None) -> list[Obligation]:
        """Everything not yet confirmed gone, wanted or ending, oldest first."""
        wanted = select(OBLIGATIONS).where(OBLIGATIONS.c.closed_at.is_(None))
        if fleet is not None:
            wanted = wanted.where(OBLIGATIONS.c.fleet == fleet)
        with self._db.read() as connection:
            rows = connection.execute(wanted.order_by(OBLIGATIONS.c.obligation_id))
            return [_obligation(row) for row in rows.mappings()]

    def ending_obligations(self, fleet: str) -> list[Obligation]:
        """What is to end and is not confirmed gone, oldest first."""
        return [o for o in self.open_obligations(fleet) if o.state is ObligationState.ENDING]

    def obligations(self, fleet: str) -> list[Obligation]:
        """All of a fleet, closed ones too, oldest first."""
        wanted = select(OBLIGATIONS).where(OBLIGATIONS.c.fleet == fleet).order_by(OBLIGATIONS.c.obligation_id)
        with self._db.read() as connection:
            return [_obligation(row) for row in connection.execute(wanted).mappings()]

    def record_observation(
        self, obligation_id: int, *, gone: bool, error: str | None = None, ended_at: datetime | None = None
    ) -> Obligation:
        """Write down what one look at the provider showed.

        Two looks in a row that say gone close the obligation, and end the rental: at the provider's own time if that
        is known, else at the first of the two looks. A look that failed (``error``) is no evidence, and breaks the row.

        Args:
            gone: a complete answer shows that it no longer exists or no longer bills.
            ended_at: when the provider says that the meter stopped.
        """
        with self._db.write() as connection:
            known = _known(connection, obligation_id)
            if known.state is ObligationState.GONE:
                return known
            if not gone or error is not None:
                values = {"gone_observations": 0, "first_gone_at": None, "last_error": error}
                return _change(connection, known, **values)
            known = _change(
                connection,
                known,
                gone_observations=known.gone_observations + 1,
                first_gone_at=known.first_gone_at or self._now(),
                last_error=None,
            )
            return known if known.gone_observations < GONE_OBSERVATIONS else self._close(connection, known, ended_at)

    def _oblige(
        self,
        connection: Connection,
        provider: str,
        ref: str,
        fleet: str,
        reason: str,
        *,
        kind: str = INSTANCE,
        state: ObligationState = ObligationState.ENDING,
        parent: str | None = None,
        usd_per_hour: Decimal | None = None,
    ) -> Obligation:
        """Open an obligation, or move the open one on; never back from ending to held.

        What came with it ends with it, and a member takes its cluster along: those end together or not at all.
        """
        known = open_one(connection, provider, kind, ref)
        since = self._now() if state is ObligationState.ENDING else None
        if known is None:
            new = Obligation(0, provider, kind, ref, fleet, reason, state, self._now(), since)
            known = self._open(connection, replace(new, parent=parent, usd_per_hour=usd_per_hour))
        elif state is ObligationState.HELD or known.state is ObligationState.ENDING:
            return known
        else:
            self._log(connection, fleet, None, "obliged", {"provider": provider, "ref": ref, "reason": reason})
            known = _change(connection, known, state=state, reason=reason, ending_since=since)
        if state is ObligationState.ENDING:
            self._oblige_kin(connection, known)
        return known

    def _oblige_kin(self, connection: Connection, ended: Obligation) -> None:
        for other in _kin(connection, ended):
            if other.state is ObligationState.HELD:
                why = f"ends with {ended.kind} {ended.ref}"
                self._oblige(connection, other.provider, other.ref, other.fleet, why, kind=other.kind)

    def _open(self, connection: Connection, new: Obligation) -> Obligation:
        values = {name: value for name, value in vars(new).items() if name != "obligation_id"}
        created = connection.execute(insert(OBLIGATIONS).values(values).returning(OBLIGATIONS.c.obligation_id))
        said = {"provider": new.provider, "ref": new.ref, "state": new.state, "reason": new.reason}
        self._log(connection, new.fleet, None, "obligation", said)
        return _known(connection, created.scalar_one())

    def _close(self, connection: Connection, known: Obligation, ended_at: datetime | None) -> Obligation:
        closed = _change(connection, known, state=ObligationState.GONE, closed_at=self._now())
        if known.kind == INSTANCE:
            _end_rental(connection, known, ended_at)
        self._log(connection, known.fleet, None, "gone", {"provider": known.provider, "ref": known.ref})
        return closed


def _end_rental(connection: Connection, gone: Obligation, ended_at: datetime | None) -> None:
    live = (
        RENTALS.c.provider == gone.provider,
        RENTALS.c.instance_id == gone.ref,
        RENTALS.c.ended_at.is_(None),
    )
    for row in connection.execute(select(RENTALS.c.rental_id, RENTALS.c.meter_stopped_at).where(*live)).all():
        end = ended_at or row.meter_stopped_at or gone.first_gone_at
        connection.execute(update(RENTALS).where(RENTALS.c.rental_id == row.rental_id).values(ended_at=end))


def open_one(connection: Connection, provider: str, kind: str, ref: str) -> Obligation | None:
    """The obligation for this thing that is not closed."""
    wanted = select(OBLIGATIONS).where(
        OBLIGATIONS.c.provider == provider,
        OBLIGATIONS.c.kind == kind,
        OBLIGATIONS.c.ref == ref,
        OBLIGATIONS.c.closed_at.is_(None),
    )
    row = connection.execute(wanted).mappings().first()
    return None if row is None else _obligation(row)


def _kin(connection: Connection, one: Obligation) -> list[Obligation]:
    """Open obligations for what came with this one, and for the cluster that this instance is a member of."""
    kin = OBLIGATIONS.c.parent == one.ref
    if one.kind == INSTANCE and one.parent is not None:
        is_cluster = OBLIGATIONS.c.kind == ExtraKind.CLUSTER.value
        kin = or_(kin, and_(is_cluster, OBLIGATIONS.c.ref == one.parent))
    wanted = select(OBLIGATIONS).where(OBLIGATIONS.c.provider == one.provider, OBLIGATIONS.c.closed_at.is_(None), kin)
    rows = connection.execute(wanted.order_by(OBLIGATIONS.c.obligation_id)).mappings()
    return [_obligation(row) for row in rows]


def _known(connection: Connection, obligation_id: int) -> Obligation:
    wanted = select(OBLIGATIONS).where(OBLIGATIONS.c.obligation_id == obligation_id)
    row = connection.execute(wanted).mappings().first()
    if row is None:
        raise LedgerConflict(f"there is no obligation {obligation_id}")
    return _obligation(row)


def _change(connection: Connection, known: Obligation, **values: object) -> Obligation:
    this = OBLIGATIONS.c.obligation_id == known.obligation_id
    connection.execute(update(OBLIGATIONS).where(this).values(**values))
    return _known(connection, known.obligation_id)


def _obligation(row: RowMapping) -> Obligation:
    return Obligation(**row)
