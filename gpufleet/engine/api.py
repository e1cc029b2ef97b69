"""What commands call. Each function is one user action on one open session.

Imports happen inside the functions: ``status`` must not wait for the SSH and HTTP libraries that ``up`` needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING

from gpufleet.domain.nodes import NodeName
from gpufleet.domain.status import Bill, FleetStatus
from gpufleet.engine.session import Session
from gpufleet.errors import GpufleetError, InvalidFleet

if TYPE_CHECKING:
    from gpufleet.domain.audit import Audit
    from gpufleet.engine.adopt import Adoption
    from gpufleet.engine.tick import Ticked
    from gpufleet.engine.weights import Doing
    from gpufleet.planning.model import FieldChange, Plan
    from gpufleet.remote.machine import Completed
    from gpufleet.routing.client import Answer


def check(session: Session) -> None:
    """Everything that `up` needs on this machine, asked before anything is shown, let alone rented.

    Raises:
        InvalidFleet: a secret is missing, the certificate cannot be served, or a fleet that this file brought up under
            another name still runs: it would be forgotten.
        EndpointFailed: haproxy is missing, or its port is taken.
        UsageError: others may write in the state directory.
    """
    from gpufleet.engine.front import Front
    from gpufleet.engine.paths import check_private
    from gpufleet.engine.recover import left_by

    check_private(session.state_dir)
    if former := left_by(session.path, session.store, but=session.fleet.name):
        raise InvalidFleet(
            f"this file brought up fleet {former[0].name}, which still runs, and now names {session.fleet.name}",
            where=str(session.path),
            hint=f"remove it first (gpufleet down {session.path}), or give the file its former name",
        )
    Front(session).check()


def make_plan(session: Session) -> Plan:
    """What `up` would do now, with live offers. Rents nothing.

    Raises:
        ProviderRefused: a provider could not be read.
    """
    from gpufleet.engine.lent import with_holders
    from gpufleet.engine.observe import plan_now
    from gpufleet.engine.refresh import refresh
    from gpufleet.engine.standing import with_standing

    refresh(session)
    return with_standing(session, with_holders(session, plan_now(session)))


def up(session: Session, plan: Plan) -> FleetStatus:
    """Carry a plan out and return the served fleet's status.

    Raises:
        ProviderRefused, NodeFailed, EndpointFailed, StillBilling, FleetBusy: says what, where and what it costs.
        Interrupted: what runs on nodes goes on there; the next `up` continues.
    """

    with _run(session, "up"):
        carry_out(session, plan, lambda: session.store.set_running(session.fleet.name, running=True))
    return status(session)


def plan_scaled(session: Session, counts: Mapping[str, int]) -> Plan:
    """What other counts would do and cost. From here on the session is about a fleet with these counts.

    Raises:
        UsageError: the fleet is not to run, or has no such pool.
        InvalidFleet: it would not work with them.
    """
    from gpufleet.engine import scaling

    scaling.ask_for(session, counts)
    return make_plan(session)


def scale(session: Session, plan: Plan) -> FleetStatus:
    """Remember the counts that `plan_scaled` was asked for, and carry them out. Raises what `up` raises."""
    from gpufleet.engine import scaling

    with _run(session, "scale"):
        carry_out(session, plan, lambda: scaling.remember(session))
    return status(session)


def tick(session: Session) -> Ticked:
    """One step of a fleet that keeps itself. See `gpufleet.engine.tick`.

    Raises:
        FleetBusy: another run is at work; the next tick does what this one would have done.
    """
    from gpufleet.engine import tick as ticking

    with _run(session, "tick"):
        return ticking.tick(session)


def down(session: Session) -> Bill:
    """End everything and return the bill once the provider has confirmed that nothing is left.

    Raises:
        StillBilling: something could not be confirmed gone.
    """
    from gpufleet.engine.down import take_down
    from gpufleet.engine.hooks import Hook, run_hook, try_hook

    with _run(session, "down"):
        run_hook(session, Hook.PRE_DOWN)
        session.store.set_running(session.fleet.name, running=False)
        bill = take_down(session)
        try_hook(session, Hook.POST_DOWN, usd=str(bill.total))
        return bill


def audit(session: Session, providers: Sequence[str] = ()) -> Audit:
    """What the providers have against the ledger. See `gpufleet.engine.reconcile`."""
    from gpufleet.engine import reconcile

    return reconcile.audit(session, providers)


def end_orphans(session: Session, found: Audit, *, owners: Sequence[str] = ()) -> None:
    """End what no record of ours knows. See `gpufleet.engine.reconcile.end_orphans`."""
    from gpufleet.engine import reconcile

    with _run(session, "reconcile"):
        reconcile.end_orphans(session, found, owners=owners)


def adoptions(session: Session, provider: str, named: Mapping[NodeName, str], rate: Decimal | None) -> list[Adoption]:
    """What can be taken over. See `gpufleet.engine.adopt.find`."""
    from gpufleet.engine import adopt

    return adopt.find(session, session.provider_named(provider), named=named, rate=rate)


def adopt(session: Session, provider: str, chosen: Sequence[Adoption]) -> None:
    """Take over. See `gpufleet.engine.adopt.take_over`."""
    from gpufleet.engine.adopt import take_over

    with _run(session, "adopt"):
        take_over(session, session.provider_named(provider), chosen)


def status(session: Session, *, live: bool = True) -> FleetStatus:
    """What is; ``live`` asks the providers, else the ledger alone is told."""
    from gpufleet.engine.status import fleet_status

    return fleet_status(session, live=live)


def drift(session: Session) -> tuple[FieldChange, ...]:
    """What has moved since the last `up` wrote its record."""
    from gpufleet.engine.observe import desired
    from gpufleet.engine.record import read_lock
    from gpufleet.planning.drift import drift

    rentals = session.store.rentals(session.fleet.name)
    fingerprints = {r.node: r.fingerprint for r in rentals if r.fingerprint}
    return drift(read_lock(session.path), desired(session).settings, fingerprints)


def ask(session: Session, text: str, *, channel: str | None, max_tokens: int, on_text: Callable[[str], None]) -> Answer:
    """Stream one answer as a channel. See `gpufleet.engine.talk.ask`."""
    from gpufleet.engine import talk

    return talk.ask(session, text, channel=channel, max_tokens=max_tokens, on_text=on_text)


def work_on_weights(session: Session, doing: Doing, nodes: Sequence[NodeName]) -> None:
    """Fetch, convert, verify, copy, pull or push weights. See `gpufleet.engine.weights`."""
    from gpufleet.engine import weights

    with _run(session, f"weights {doing}"):
        weights.work_on_weights(session, doing, nodes)


def node_logs(session: Session, node: NodeName, *, source: str | None, follow: bool, tail: int) -> Iterator[bytes]:
    """A node's log. See `gpufleet.engine.tools.node_logs`."""
    from gpufleet.engine import tools

    return tools.node_logs(session, node, source=source, follow=follow, tail=tail)


def ssh_command(session: Session, node: NodeName) -> list[str]:
    """The command line of a shell on a node. See `gpufleet.engine.tools.ssh_command`."""
    from gpufleet.engine import tools

    return tools.ssh_command(session, node)


def execute(session: Session, nodes: Sequence[NodeName], command: str) -> Iterator[tuple[NodeName, Completed]]:
    """Run a shell line on nodes. See `gpufleet.engine.tools.execute`."""
    from gpufleet.engine import tools

    return tools.execute(session, nodes, command)


def render(session: Session, what: str, node: NodeName | None) -> str:
    """What would run. See `gpufleet.engine.tools.render`."""
    from gpufleet.engine import tools

    return tools.render(session, what, node)


def carry_out(session: Session, plan: Plan, remember: Callable[[], None] = lambda: None) -> None:
    """Carry a plan out, between its hooks.

    Args:
        remember: writes down what is wanted, once no hook is against it and before anything is done.
    """
    from gpufleet.engine.hooks import Hook, run_hook, try_hook
    from gpufleet.engine.up import bring_up

    facts = {"usd_per_hour": str(plan.usd_per_hour_after), "nodes": " ".join(str(a.node) for a in plan.changing)}
    if plan.changes:
        run_hook(session, Hook.PRE_UP, **facts)
    remember()
    bring_up(session, plan)
    if plan.changes:
        try_hook(session, Hook.POST_UP, **facts)


@contextmanager
def _run(session: Session, command: str) -> Iterator[None]:
    """Hold the fleet, and note the command's outcome."""
    from gpufleet.ledger.lock import fleet_lock

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
