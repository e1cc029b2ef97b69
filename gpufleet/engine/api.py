"""What commands call. Each function is one user action on one open session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from gpufleet.domain.status import Bill, FleetStatus
from gpufleet.engine.down import take_down
from gpufleet.engine.front import Front
from gpufleet.engine.observe import desired, observed
from gpufleet.engine.record import read_lock
from gpufleet.engine.session import Session, now
from gpufleet.engine.status import fleet_status
from gpufleet.engine.sweep import refresh
from gpufleet.engine.talk import ask
from gpufleet.engine.tools import execute, node_logs, render, ssh_command
from gpufleet.engine.up import bring_up
from gpufleet.errors import GpufleetError
from gpufleet.ledger.lock import fleet_lock
from gpufleet.planning import planner
from gpufleet.planning.drift import drift as drift_from
from gpufleet.planning.model import FieldChange, Plan

__all__ = [
    "ask",
    "check",
    "down",
    "drift",
    "execute",
    "make_plan",
    "node_logs",
    "render",
    "ssh_command",
    "status",
    "up",
]


def check(session: Session) -> None:
    """Everything that `up` needs on this machine, asked before anything is shown, let alone rented.

    Raises:
        InvalidFleet: a secret is missing or the certificate cannot be served.
        EndpointFailed: haproxy is missing, or its port is taken.
    """
    Front(session).check()


def make_plan(session: Session) -> Plan:
    """What `up` would do now, with live offers. Rents nothing.

    Raises:
        ProviderRefused: a provider could not be read.
    """
    refresh(session)
    return planner.plan(desired(session), observed(session), now())


def up(session: Session, plan: Plan) -> FleetStatus:
    """Carry a plan out and return the served fleet's status.

    Raises:
        ProviderRefused, NodeFailed, EndpointFailed, StillBilling, FleetBusy: says what, where and what it costs.
        Interrupted: what runs on nodes goes on there; the next `up` continues.
    """
    with _run(session, "up"):
        bring_up(session, plan)
    return status(session)


def down(session: Session) -> Bill:
    """End everything and return the bill once the provider has confirmed that nothing is left.

    Raises:
        StillBilling: something could not be confirmed gone.
    """
    with _run(session, "down"):
        return take_down(session)


def status(session: Session, *, live: bool = True) -> FleetStatus:
    """What is; ``live`` asks the providers, else the ledger alone is told."""
    return fleet_status(session, live=live)


def drift(session: Session) -> tuple[FieldChange, ...]:
    """What has moved since the last `up` wrote its record."""
    rentals = session.store.rentals(session.fleet.name)
    fingerprints = {r.node: r.fingerprint for r in rentals if r.fingerprint}
    return drift_from(read_lock(session.path), desired(session).settings, fingerprints)


@contextmanager
def _run(session: Session, command: str) -> Iterator[None]:
    """Hold the fleet, and note the command's outcome."""
    store, fleet = session.store, session.fleet
    wait = os.environ.get("GPUFLEET_LOCK_WAIT")
    with fleet_lock(session.ledger, fleet.name, command=command, wait=float(wait) if wait else None):
        store.save_fleet(fleet.name, session.loaded.text, str(session.path.absolute()))
        run = store.begin_run(fleet.name, command)
        try:
            yield
        except GpufleetError as error:
            store.end_run(run, type(error).__name__)
            raise
        store.end_run(run, "ok")
