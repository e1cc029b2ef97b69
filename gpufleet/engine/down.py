"""``down``: the front door closed, every rental ended and confirmed gone, the bill told."""

from __future__ import annotations

from gpufleet.domain.progress import Progress
from gpufleet.domain.status import Bill
from gpufleet.engine.front import Front
from gpufleet.engine.machines import Machines
from gpufleet.engine.release import confirm_gone, decide_end
from gpufleet.engine.router import close_front
from gpufleet.engine.session import Session, now
from gpufleet.engine.signals import stop_on_signals
from gpufleet.engine.sweep import sweep
from gpufleet.ledger.costs import bill


def take_down(session: Session) -> Bill:
    """End everything. The fleet's lock is held by the caller.

    The end of every rental is decided, durably, before anything else that may fail: a run that is cut short here has
    left nothing that the next one would keep.

    Raises:
        StillBilling: something could not be confirmed gone.
        Interrupted: the obligations stay; the next run goes on.
    """
    machines = Machines(session)
    try:
        with stop_on_signals(session.stop):
            sweep(session)
            for rental in session.store.rentals(session.fleet.name):
                decide_end(session, rental, "down")
            _close(session, machines)
            session.sink(Progress(None, "confirm", message="waiting until the provider says that nothing is left"))
            confirm_gone(session)
    finally:
        machines.close()
    return bill(session.store, session.fleet.name, now())


def _close(session: Session, machines: Machines) -> None:
    """A router on this machine is closed; one on a rented node ends with the node."""
    if Front(session).on_this_machine and session.paths.router.exists():
        close_front(session, machines)
