"""What `status` tells: the ledger's rentals, the router's view of the cells, the bill.

Imports neither SSH nor HTTP, but for gates.
"""

from __future__ import annotations

from gpufleet.domain.money import usd_per_hour
from gpufleet.domain.nodes import NodeName, Role
from gpufleet.domain.status import EndpointStatus, FleetStatus, GateStatus, NodeStatus
from gpufleet.engine.front import Front, seen_serving
from gpufleet.engine.refresh import refresh, strangers, told
from gpufleet.engine.session import Session, now
from gpufleet.errors import GpufleetError, InvalidFleet
from gpufleet.ledger.costs import bill
from gpufleet.ledger.records import Obligation, Rental
from gpufleet.spec.feeding import gated_nodes

READ_SECONDS = 3.0
"""Who asks how things are does not wait a minute for a provider that is down: the ledger knows what is rented."""


def fleet_status(session: Session, *, live: bool) -> FleetStatus:
    """The fleet as it is; with ``live`` the providers are asked first, and one that does not answer is a problem."""
    problems: list[str] = []
    if live:
        session.read_seconds = READ_SECONDS
        try:
            if unknown := strangers(session, refresh(session)):
                problems.append(told(unknown))
        except GpufleetError as failure:
            at = f"{failure.where}: " if failure.where else ""
            problems.append(f"{at}{failure.message}; what is shown may be old")
    front = Front(session)
    sick = front.sick_nodes()
    rentals = session.store.rentals(session.fleet.name)
    return FleetStatus(
        fleet=session.fleet.name,
        nodes=tuple(_node(session, rental, rental.node in sick) for rental in rentals),
        cells=front.cells() if rentals else (),
        endpoint=_endpoint(front, problems),
        bill=bill(session.store, session.fleet.name, now()),
        problems=(*problems, *_problems(session, rentals)),
        gates=_gates(session) if live else (),
    )


def _gates(session: Session) -> tuple[GateStatus, ...]:
    """Asked over SSH, whose library a fleet without gates need not wait for."""
    if not gated_nodes(session.fleet):
        return ()
    from gpufleet.engine.gates import read_gates

    return read_gates(session)


def _endpoint(front: Front, problems: list[str]) -> EndpointStatus | None:
    """A secret that is gone is no reason to tell nothing, least of all what still costs money."""
    try:
        return front.status()
    except InvalidFleet as missing:
        problems.append(missing.message)
        return None


def _node(session: Session, rental: Rental, sick: bool) -> NodeStatus:
    return NodeStatus(
        node=rental.node,
        role=_role(session, rental.node),
        gpu=rental.gpu,
        provider=rental.provider,
        instance_id=rental.instance_id,
        state=rental.state,
        serving=seen_serving(rental, sick=sick),
        usd_per_hour=rental.usd_per_hour,
        address=rental.private_ip or (rental.ssh.host if rental.ssh else None),
        since=rental.started_at,
        note="a duplicate, to be ended" if rental.duplicate else rental.note,
    )


def _role(session: Session, node: NodeName) -> Role:
    """The file's; for a pool that it no longer has, the one its name says."""
    if node.pool in session.fleet.pools:
        return session.fleet.role_of(node.pool)
    return Role(node.pool) if node.pool in list(Role) else Role.NATIVE


def _problems(session: Session, rentals: list[Rental]) -> list[str]:
    path = session.path
    by_id = {(r.provider, r.instance_id): r for r in rentals}
    ending = session.store.ending_obligations(session.fleet.name)
    told = [_not_gone(o, by_id.get((o.provider, o.ref)), str(path)) for o in ending]
    unclear = session.store.open_intents(session.fleet.name)
    if unclear:
        rate = usd_per_hour(session.store.pending_usd_per_hour(session.fleet.name))
        told.append(f"{len(unclear)} create calls are unclear and may cost {rate}; look them up: gpufleet up {path}")
    return told


def _not_gone(obligation: Obligation, rental: Rental | None, path: str) -> str:
    what = f"{rental.node} ({obligation.provider} {obligation.ref})" if rental else obligation.ref
    rate = usd_per_hour(rental.usd_per_hour if rental else None)
    why = f": {obligation.last_error}" if obligation.last_error else ""
    return f"{what} is to end but not confirmed gone, {rate}{why}; go on: gpufleet down {path}"
