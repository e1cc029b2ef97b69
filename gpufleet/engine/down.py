"""``down``: the front door closed, every rental ended and confirmed gone, the bill told."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from gpufleet.domain.progress import Progress
from gpufleet.domain.status import Bill
from gpufleet.engine.acquire import Acquirer
from gpufleet.engine.front import Front
from gpufleet.engine.machines import Machines
from gpufleet.engine.release import confirm_gone, decide_end
from gpufleet.engine.router import close_front
from gpufleet.engine.session import Session, now
from gpufleet.engine.signals import stop_on_signals
from gpufleet.engine.sweep import sweep
from gpufleet.engine.watch import NodeWatch
from gpufleet.errors import NodeFailed
from gpufleet.ledger.costs import bill
from gpufleet.ledger.records import Rental
from gpufleet.providers.base import Lifetime


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
            rentals = session.store.rentals(session.fleet.name)
            for rental in rentals:
                decide_end(session, rental, "down")
            _close(session, machines)
            _clean_hosts(session, machines, rentals)
            session.sink(Progress(None, "confirm", message="waiting until the provider says that nothing is left"))
            confirm_gone(session)
    finally:
        machines.close()
    return bill(session.store, session.fleet.name, now())


def _close(session: Session, machines: Machines) -> None:
    """A router on this machine is closed; one on a rented node ends with the node."""
    if Front(session).on_this_machine and session.paths.router.exists():
        close_front(session, machines)


def _clean_hosts(session: Session, machines: Machines, rentals: list[Rental]) -> None:
    """Hosts that are given back, not destroyed, are left as they were found.

    A host that cannot be reached is given back all the same, and named: our processes may still run there.
    """
    lent = [r for r in rentals if session.provider_named(r.provider).caps.lifetime is Lifetime.RELEASE]
    if not lent:
        return
    acquirer = Acquirer(session, machines, {})

    def clean(rental: Rental) -> None:
        watch = NodeWatch(rental.node, session.sink)
        watch.phase("drain", message="stopping what runs there")
        try:
            acquirer.run(rental, acquirer.jobs(rental).cleanup(), watch)
        except NodeFailed as error:
            watch.failed(f"not cleaned up: {error.message}")
            session.store.log_event(session.fleet.name, rental.node, "not-cleaned", {"why": error.message})

    with ThreadPoolExecutor(max_workers=len(lent)) as pool:
        list(pool.map(clean, lent))
