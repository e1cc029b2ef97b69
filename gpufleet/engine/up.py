"""``up``: a plan carried out, the front door opened, every channel proved by a real request, the record written."""

from __future__ import annotations

from decimal import Decimal

from gpufleet.domain.market import Offer
from gpufleet.domain.nodes import NodeName
from gpufleet.domain.progress import Progress, ProgressState
from gpufleet.domain.status import Serving
from gpufleet.engine.acquire import Acquirer
from gpufleet.engine.bringup import VLLM_ROUTER, BringUp, Target
from gpufleet.engine.front import Front
from gpufleet.engine.machines import Machines
from gpufleet.engine.observe import expected_phases
from gpufleet.engine.record import write_record
from gpufleet.engine.release import confirm_gone, decide_end, ending
from gpufleet.engine.router import open_front
from gpufleet.engine.session import Session
from gpufleet.engine.signals import stop_on_signals
from gpufleet.engine.sweep import sweep
from gpufleet.engine.talk import prove_channels
from gpufleet.engine.tasks import raise_failures
from gpufleet.engine.watch import NodeWatch
from gpufleet.errors import InvalidFleet
from gpufleet.ledger.records import Rental
from gpufleet.planning.model import Action, ActionKind, Plan
from gpufleet.planning.placement import fits

_RENTS = {ActionKind.CREATE, ActionKind.REPLACE}


def bring_up(session: Session, plan: Plan) -> None:
    """Carry ``plan`` out. The fleet's lock is held by the caller.

    Raises:
        InvalidFleet: the plan is refused (over budget, no offer). Nothing was rented.
    """
    if plan.refusal:
        raise InvalidFleet(plan.refusal, hint=f"gpufleet plan {session.path}")
    machines = Machines(session)
    try:
        with stop_on_signals(session.stop):
            _carry_out(session, plan, machines)
    finally:
        machines.close()


def _carry_out(session: Session, plan: Plan, machines: Machines) -> None:
    acquirer = Acquirer(session, machines, sweep(session))
    held = live_rentals(session)
    _end_unwanted(session, plan)
    targets = {
        action.node: _target(session, plan, action.node, held)
        for action in plan.actions
        if action.node in _wanted(plan)
    }
    watches = {node: _watch(session, node) for node in targets}
    work = BringUp(session, acquirer, targets, watches)
    failures = work.run()
    _open(session, work, plan)
    if ending(session):
        session.sink(Progress(None, "confirm", message="what was replaced is being confirmed gone"))
        confirm_gone(session)
    raise_failures(failures)
    session.sink(Progress(None, "ready", ProgressState.DONE, message=Front(session).url))


def _open(session: Session, work: BringUp, plan: Plan) -> None:
    """Open or refresh the front door for whatever serves; a failed node never closes it for the healthy ones."""
    topology = work.topology()
    cells = [cell for cell in topology.cells if work.served(f"cell {cell.name}")]
    native = topology.native_router is not None and work.served(VLLM_ROUTER)
    if not cells and not native:
        return
    session.sink(Progress(None, "router"))
    changed = open_front(session, work.acquirer.machines, topology, cells, native=native)
    if plan.changes or changed:
        session.sink(Progress(None, "probe", message="one real request per channel"))
        prove_channels(session, native=native)
    _note_ready(session, work, cells=[n for c in cells for n in (c.decode, c.prefill)], native=native)
    session.sink(Progress(None, "record", message=str(write_record(session, live_rentals(session)))))


def _note_ready(session: Session, work: BringUp, *, cells: list[NodeName], native: bool) -> None:
    """Nodes that serve now: those of open cells, natives behind their router, and spare prefills."""
    for node, rental in work.rentals.items():
        role = session.fleet.role_of(node.pool).value
        in_cell = node in cells
        if in_cell or (role == "native" and native) or (role == "prefill" and work.served(f"serve {node}")):
            session.store.set_serving(rental.provider, rental.instance_id, Serving.READY, note="")
            work.watches[node].done()


def _wanted(plan: Plan) -> set[NodeName]:
    kinds = {ActionKind.CREATE, ActionKind.REPLACE, ActionKind.UPDATE, ActionKind.KEEP}
    return {action.node for action in plan.actions if action.kind in kinds}


def _end_unwanted(session: Session, plan: Plan) -> None:
    by_id = {(r.provider, r.instance_id): r for r in session.store.rentals(session.fleet.name)}
    for action in plan.actions:
        if action.kind in {ActionKind.TERMINATE, ActionKind.REPLACE} and action.instance_id:
            rental = next((r for (_, i), r in by_id.items() if i == action.instance_id), None)
            if rental is not None:
                decide_end(session, rental, action.reason)


def live_rentals(session: Session) -> dict[NodeName, Rental]:
    """The rental that stands for each node: alive, no duplicate, its end not decided."""
    gone = {(o.provider, o.ref) for o in ending(session)}
    return {
        r.node: r
        for r in session.store.rentals(session.fleet.name)
        if not r.duplicate and (r.provider, r.instance_id) not in gone
    }


def _target(session: Session, plan: Plan, node: NodeName, held: dict[NodeName, Rental]) -> Target:
    action = next(a for a in plan.actions if a.node == node and a.kind in _RENTS | {ActionKind.UPDATE, ActionKind.KEEP})
    rental = None if action.kind is ActionKind.REPLACE else held.get(node)
    work = action.kind is not ActionKind.KEEP
    region = action.offer.region if action.offer else rental.region if rental else ""
    return Target(node, _offers(session, action, region), rental, work)


def _offers(session: Session, action: Action, region: str) -> list[Offer]:
    """What may be rented for a node, in the order to try: the planned offer, then others of its region that fit.

    The others cost at most what was shown in the plan, or what the pool's own limit allows: nobody pays more than they
    agreed to because the first offer was gone.
    """
    pool = session.fleet.pools[action.node.pool]
    limit = max(action.usd_per_hour, pool.max_usd_per_hour or Decimal(0))
    budget = session.fleet.budget.max_usd_per_hour
    if budget is not None:
        limit = min(limit, max(action.usd_per_hour, budget / max(1, len(session.fleet.nodes()))))
    planned = [action.offer] if action.offer else []
    others = [
        offer
        for offer in session.offers.get(action.node.pool, ())
        if offer not in planned and offer.region == region and offer.usd_per_hour <= limit and fits(pool, offer)
    ]
    return [*planned, *sorted(others, key=lambda offer: offer.usd_per_hour)]


def _watch(session: Session, node: NodeName) -> NodeWatch:
    provider = session.provider(session.fleet.provider_of(node.pool))
    phases = {"boot": 240.0, "connect": 5.0, **expected_phases(session, node)}
    return NodeWatch(node, session.sink, {k: v / provider.caps.time_scale for k, v in phases.items()})
