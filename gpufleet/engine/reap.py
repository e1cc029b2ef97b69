"""``reap``: what cron runs so that nothing outlives its deadline, whether or not the fleet file still exists."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpufleet.engine.paths import default_state_dir
from gpufleet.engine.recover import owes
from gpufleet.engine.release import confirm_gone, decide_end, ending
from gpufleet.engine.session import Session, now
from gpufleet.engine.sweep import sweep_each
from gpufleet.errors import FleetBusy, GpufleetError
from gpufleet.ledger.lock import fleet_lock
from gpufleet.ledger.records import FleetRecord, Rental
from gpufleet.ledger.store import Store
from gpufleet.spec.load import parse_fleet

_CONFIRM_SECONDS = 120.0


@dataclass(frozen=True)
class Reaped:
    """What became of one fleet."""

    fleet: str
    ended: tuple[str, ...] = ()
    """Nodes whose deadline had passed."""
    still: tuple[str, ...] = ()
    """What should be gone and is not confirmed gone."""
    failure: str | None = None
    busy: bool = False
    """Another run holds it: left alone."""


def reap(only: Sequence[str] = ()) -> list[Reaped]:
    """Every fleet of the ledger that owes something, or may, one after the other. Rents nothing.

    Args:
        only: names of fleets; none for all.
    """
    state = default_state_dir()
    ledger: Path | str = os.environ.get("GPUFLEET_LEDGER") or state / "ledger.db"
    if isinstance(ledger, Path) and not ledger.exists():
        return []
    with Store.open(ledger) as store:
        fleets = [f for f in store.fleets() if (not only or f.name in only) and _may_owe(store, f.name)]
        return [_reap(store, ledger, state, fleet) for fleet in fleets]


def _may_owe(store: Store, fleet: str) -> bool:
    return owes(store, fleet) or bool(store.doubtful_providers(fleet))


def _reap(store: Store, ledger: Path | str, state: Path, record: FleetRecord) -> Reaped:
    try:
        session = Session(parse_fleet(record.spec_text, path=Path(record.spec_path)), state, store, ledger)
        with fleet_lock(ledger, record.name, command="reap"):
            return end_what_is_due(session)
    except FleetBusy:
        return Reaped(record.name, busy=True)
    except GpufleetError as failure:
        return Reaped(record.name, still=_still(store, record.name), failure=failure.message)


def end_what_is_due(session: Session) -> Reaped:
    """End rentals whose time is over, and go on with what is to end. The fleet's lock is held by the caller.

    The end is decided before any provider is asked: one that is away keeps nothing from being written down."""
    due = [r for r in session.store.rentals(session.fleet.name) if is_due(r)]
    for rental in due:
        decide_end(session, rental, "its deadline has passed")
    names = sorted({*session.owing_providers(), *session.store.doubtful_providers(session.fleet.name)})
    _, unread = sweep_each(session, names)
    for rental in session.store.rentals(session.fleet.name):
        if is_due(rental):
            decide_end(session, rental, "its deadline has passed")
    if ending(session):
        confirm_gone(session, give_up=_CONFIRM_SECONDS)
    return Reaped(
        session.fleet.name,
        ended=tuple(str(r.node) for r in due),
        failure=unread[0].message if unread else None,
    )


def is_due(rental: Rental) -> bool:
    """Whether its time is over."""
    return rental.deadline_at is not None and rental.deadline_at <= now()


def _still(store: Store, fleet: str) -> tuple[str, ...]:
    return tuple(f"{o.kind} {o.ref} at {o.provider}" for o in store.ending_obligations(fleet))
