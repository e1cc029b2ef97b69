"""``down``: the front door closed, every rental ended and confirmed gone, the bill told."""

from __future__ import annotations

from collections.abc import Sequence

from gpufleet.domain.money import usd_per_hour
from gpufleet.domain.progress import Progress, ProgressState
from gpufleet.domain.status import Bill
from gpufleet.engine.machines import Machines
from gpufleet.engine.recover import left_by
from gpufleet.engine.refresh import strangers, told
from gpufleet.engine.release import confirm_gone, decide_end, ending
from gpufleet.engine.router import close_front
from gpufleet.engine.session import Session, now
from gpufleet.engine.signals import stop_on_signals
from gpufleet.engine.sweep import sweep_each
from gpufleet.errors import GpufleetError, Interrupted, StillBilling
from gpufleet.ledger.costs import bill
from gpufleet.ledger.obligations import INSTANCE


def take_down(session: Session) -> Bill:
    """End everything. The fleet's lock is held by the caller.

    The end of every rental is decided, durably, before anything else that may fail, and nothing that fails keeps what
    comes after it from being tried: not a provider that cannot be read, not a router that does not stop.

    Raises:
        StillBilling: something could not be confirmed gone, or may still exist.
        NodeFailed: all is gone, but the router on this machine may still run.
        Interrupted: the obligations stay; the next run goes on.
    """
    with Machines(session) as machines, stop_on_signals(session.stop):
        store, fleet = session.store, session.fleet.name
        providers = sorted({*session.owing_providers(), *store.doubtful_providers(fleet)})
        unread = _find_and_decide(session, providers)
        not_closed = _close(session, machines)
        session.sink(Progress(None, "confirm", message="waiting until the provider says that nothing is left"))
        confirm_gone(session)
        _look_once_more(session, providers)
        _check_nothing_is_left(session, unread)
    if not_closed:
        raise not_closed
    return bill(session.store, session.fleet.name, now())


def _find_and_decide(session: Session, providers: Sequence[str]) -> list[GpufleetError]:
    """Decide the end of all that is known, then of what the providers still show; returns why some were not read."""
    _decide(session)
    _, unread = sweep_each(session, providers)
    _decide(session)
    return unread


def _look_once_more(session: Session, providers: Sequence[str]) -> None:
    """What showed up only while the rest was ended ends too."""
    while True:
        listings, _ = sweep_each(session, providers)
        if found := strangers(session, listings):
            raise StillBilling(f"{len(found)} instances may still cost money: {told(found)}")
        _decide(session)
        if not ending(session):
            return
        confirm_gone(session)


def _decide(session: Session) -> None:
    for rental in session.store.rentals(session.fleet.name):
        decide_end(session, rental, "down")
    for owed in session.store.open_obligations(session.fleet.name):
        if owed.kind != INSTANCE:
            session.store.oblige(owed.provider, owed.ref, fleet=owed.fleet, reason="down", kind=owed.kind)


def _close(session: Session, machines: Machines) -> GpufleetError | None:
    """Let streams end before their nodes do. Returns why the router on this machine did not close."""
    try:
        close_front(session, machines)
    except Interrupted:
        raise
    except GpufleetError as error:
        session.sink(Progress(None, "router", ProgressState.FAILED, message=error.message))
        return error
    return None


def _check_nothing_is_left(session: Session, unread: list[GpufleetError]) -> None:
    """Create calls of unknown outcome are no rentals yet, and other fleets of this file have names of their own."""
    store, again = session.store, f"gpufleet down {session.path}"
    if unclear := store.open_intents(session.fleet.name):
        rate = usd_per_hour(store.pending_usd_per_hour(session.fleet.name))
        why = f": {unread[0].message}" if unread else ""
        raise StillBilling(f"{len(unclear)} create calls are unclear and may cost {rate}{why}", hint=again)
    if others := left_by(session.path, store, but=session.fleet.name):
        raise StillBilling(f"{others[0].name}, which this file brought up under that name, still runs", hint=again)
