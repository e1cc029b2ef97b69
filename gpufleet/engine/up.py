"""``up``: a plan carried out, the front door opened, every channel proved by a real request, the record written."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from decimal import Decimal

from gpufleet.domain.market import InstanceState, Offer
from gpufleet.domain.money import usd_per_hour
from gpufleet.domain.nodes import NodeName, Role
from gpufleet.domain.progress import Progress, ProgressState
from gpufleet.domain.status import Serving
from gpufleet.engine.acquire import Acquirer
from gpufleet.engine.bringup import VLLM_ROUTER, BringUp, Target
from gpufleet.engine.cells import feed_orphans, forget_cell
from gpufleet.engine.drain import backends_of, drain, undrain
from gpufleet.engine.elsewhere import plan_elsewhere
from gpufleet.engine.front import NATIVE, Front
from gpufleet.engine.machines import Machines
from gpufleet.engine.observe import expected_phases, plan_now
from gpufleet.engine.record import write_record
from gpufleet.engine.release import ask_end, confirm_gone, decide_end, ending
from gpufleet.engine.router import open_front
from gpufleet.engine.session import Session
from gpufleet.engine.signals import stop_on_signals
from gpufleet.engine.sweep import sweep
from gpufleet.engine.talk import prove_channels
from gpufleet.engine.tasks import raise_failures
from gpufleet.engine.watch import NodeWatch
from gpufleet.errors import Declined, GpufleetError, Interrupted, InvalidFleet
from gpufleet.ledger.records import Rental
from gpufleet.planning.model import WANTED_KINDS, Action, ActionKind, Plan
from gpufleet.planning.placement import fits

_BACKEND_SECONDS = 30.0
_ENDS = {ActionKind.TERMINATE, ActionKind.REPLACE}


def bring_up(session: Session, plan: Plan) -> None:
    """Carry ``plan``, which the user has agreed to, out. The fleet's lock is held by the caller.

    The plan was made before the lock was taken, so it is made again: what is carried out is what is true now.

    Raises:
        InvalidFleet: the plan is refused (over budget, no offer). Nothing was rented.
        Declined: it would now cost more, or end more, than was agreed to. Nothing was rented.
    """
    _check_refusal(session, plan)
    with Machines(session) as machines, stop_on_signals(session.stop):
        _carry_out(session, plan, machines)


def _carry_out(session: Session, plan: Plan, machines: Machines) -> None:
    acquirer = Acquirer(session, machines, sweep(session))
    agreed, plan = plan, plan_now(session)
    _check_refusal(session, plan)
    _check_agreed(session, agreed, plan)
    work, failures = _work_on(session, acquirer, plan)
    while other := plan_elsewhere(session, agreed, work.targets, failures):
        plan = other
        work, failures = _work_on(session, acquirer, plan)
    failures |= feed_orphans(work)
    unopened = _attempt("endpoint", lambda: _open(session, work, plan))
    failures |= unopened or _attempt("retire", lambda: _retire(session, work, plan))
    failures |= _attempt("confirm", lambda: _confirm(session))
    failures |= _attempt("store", lambda: _store_weights(session, work))
    raise_failures(failures)
    session.sink(Progress(None, "ready", ProgressState.DONE, message=Front(session).url))


def _work_on(session: Session, acquirer: Acquirer, plan: Plan) -> tuple[BringUp, dict[str, BaseException]]:
    """Rent, bring up and end what the plan says; returns the failures by task."""
    unwanted = _unwanted(session, plan)
    serving = [r for r in unwanted if r.serving is Serving.READY and r.state is InstanceState.RUNNING]
    _end(session, plan, [r for r in unwanted if r not in serving])
    shared = [r for r in serving if _is_shared(session, plan, r)]
    alone = [r for r in serving if r not in shared]
    rented = {(r.node, r.instance_id): r for r in session.store.rentals(session.fleet.name)}
    targets = {action.node: _target(session, action, rented) for action in plan.actions if action.kind in WANTED_KINDS}
    watches = {node: _watch(session, node) for node in targets}
    work = BringUp(session, acquirer, targets, watches, shrinks=bool(shared))
    if alone:
        backends = backends_of(session, {rental.node for rental in alone})
        work.graph.add("end", lambda: _drain_and_end(session, plan, alone, backends))
    for rental in unwanted:
        forget_cell(work, rental)
    return work, work.run()


def _is_shared(session: Session, plan: Plan, rental: Rental) -> bool:
    """Whether the native pool's router sends requests there: it goes only after callers have been led around it.

    What is replaced makes room first: stock and budget may not hold both.
    """
    fleet = session.fleet
    goes = any(a.instance_id == rental.instance_id for a in plan.of(ActionKind.TERMINATE))
    return goes and rental.node.pool in fleet.pools and fleet.role_of(rental.node.pool) is not Role.DECODE


def _retire(session: Session, work: BringUp, plan: Plan) -> None:
    """End what callers are not sent to any more: former routers of the native pool, then the nodes behind them."""
    work.retire_native_routers()
    leaving = [r for r in _unwanted(session, plan) if _is_shared(session, plan, r)]
    if leaving:
        _drain_and_end(session, plan, leaving, backends_of(session, {rental.node for rental in leaving}))


def _check_refusal(session: Session, plan: Plan) -> None:
    if plan.refusal:
        raise InvalidFleet(plan.refusal, hint=f"gpufleet plan {session.path}")


def _check_agreed(session: Session, agreed: Plan, plan: Plan) -> None:
    """What changed while the user looked at the plan may make it cheaper, and nothing else.

    Raises:
        Declined: it would cost more, or end a node that serves and that was to stay.
    """
    hint = f"gpufleet up {session.path}"
    before, after = usd_per_hour(agreed.usd_per_hour_after), usd_per_hour(plan.usd_per_hour_after)
    if plan.usd_per_hour_after > agreed.usd_per_hour_after:
        raise Declined(f"the fleet would now cost {after}, not {before}: it changed since the plan was made", hint=hint)
    known = {action.instance_id for action in agreed.actions if action.kind in _ENDS}
    ready = {
        r.instance_id
        for r in session.store.rentals(session.fleet.name)
        if r.serving is Serving.READY and r.state is InstanceState.RUNNING
    }
    for action in plan.actions:
        if action.kind in _ENDS and action.instance_id in ready - known:
            raise Declined(f"{action.node} would now end ({action.reason}), which was not in the plan", hint=hint)


def _attempt(name: str, work: Callable[[], None]) -> dict[str, BaseException]:
    """A failure is told with all others at the end: what follows it must happen all the same."""
    try:
        work()
    except Interrupted:
        raise
    except GpufleetError as error:
        return {name: error}
    return {}


def _confirm(session: Session) -> None:
    if ending(session):
        session.sink(Progress(None, "confirm", message="what was replaced is being confirmed gone"))
        confirm_gone(session)


def _store_weights(session: Session, work: BringUp) -> None:
    try:
        work.store_weights()
    except GpufleetError as error:
        error.hint = f"the fleet serves all the same; try again: gpufleet weights push {session.path}"
        raise


def _open(session: Session, work: BringUp, plan: Plan) -> None:
    """Open or refresh the front door for whatever serves; a failed node never closes it for the healthy ones."""
    topology = work.topology()
    cells = [cell for cell in topology.cells if work.served(f"cell {cell.name}")]
    native = topology.native_router is not None and work.served(VLLM_ROUTER)
    if not cells and not native:
        return
    session.sink(Progress(None, "router"))
    changed = open_front(session, work.acquirer.machines, topology, cells, native=native)
    undrain(session, {*(cell.name for cell in cells), *([NATIVE] if native else [])})
    if plan.changes or changed:
        _wait_for_backends(session)
        session.sink(Progress(None, "probe", message="one real request per channel"))
        prove_channels(session, native=native)
    _note_ready(session, work, cells=[n for c in cells for n in (c.decode, c.prefill)], native=native)
    session.sink(Progress(None, "record", message=str(write_record(session, live_rentals(session)))))


def _wait_for_backends(session: Session) -> None:
    """Until the router has found every backend healthy; one that it keeps down is told by the request through it."""
    deadline = time.monotonic() + _BACKEND_SECONDS
    while any(cell.up is False for cell in Front(session).cells()) and time.monotonic() < deadline:
        if session.stop.wait(0.1):
            raise Interrupted("interrupted while the router looks for its backends")


def _note_ready(session: Session, work: BringUp, *, cells: list[NodeName], native: bool) -> None:
    """Nodes that serve now: those of open cells, natives behind their router, and spare prefills."""
    for node, rental in work.rentals.items():
        role = session.fleet.role_of(node.pool).value
        in_cell = node in cells
        if in_cell or (role == "native" and native) or (role == "prefill" and work.served(f"serve {node}")):
            session.store.set_serving(rental.provider, rental.instance_id, Serving.READY, note="")
            work.watches[node].done()


def _unwanted(session: Session, plan: Plan) -> list[Rental]:
    """Rentals that the plan ends."""
    ends = {(action.node, action.instance_id) for action in plan.actions if action.kind in _ENDS}
    return [r for r in session.store.rentals(session.fleet.name) if (r.node, r.instance_id) in ends]


def _end(session: Session, plan: Plan, rentals: Sequence[Rental]) -> None:
    """End them now, and not only when everything else is up: until then they cost money for nothing."""
    reasons = {action.instance_id: action.reason for action in plan.actions if action.kind in _ENDS}
    for rental in rentals:
        decide_end(session, rental, reasons[rental.instance_id])
    ask_end(session, rentals)


def _drain_and_end(session: Session, plan: Plan, rentals: Sequence[Rental], backends: Set[str]) -> None:
    drain(session, backends)
    if not session.stop.is_set():
        _end(session, plan, rentals)


def live_rentals(session: Session) -> dict[NodeName, Rental]:
    """The rental that stands for each node: alive, no duplicate, its end not decided."""
    gone = {(o.provider, o.ref) for o in ending(session)}
    return {
        r.node: r
        for r in session.store.rentals(session.fleet.name)
        if not r.duplicate and (r.provider, r.instance_id) not in gone
    }


def _target(session: Session, action: Action, rented: Mapping[tuple[NodeName, str], Rental]) -> Target:
    stays = action.kind in {ActionKind.UPDATE, ActionKind.KEEP}
    rental = rented.get((action.node, action.instance_id or "")) if stays else None
    work = action.kind is not ActionKind.KEEP
    region = action.offer.region if action.offer else rental.region if rental else ""
    return Target(action.node, _offers(session, action, region), rental, work)


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
    apart = session.fleet.network.rdma == "off"
    others = [
        offer
        for offer in session.offers.get(action.node.pool, ())
        if offer not in planned
        and ((offer.provider, offer.region) == (action.provider, region) or (apart and pool.region is None))
        and offer.usd_per_hour <= limit
        and fits(pool, offer)
    ]
    return [*planned, *sorted(others, key=lambda offer: (offer.provider != action.provider, offer.usd_per_hour))]


def _watch(session: Session, node: NodeName) -> NodeWatch:
    provider = session.provider(session.fleet.provider_of(node.pool))
    phases = {"boot": 240.0, "connect": 5.0, **expected_phases(session, node)}
    return NodeWatch(node, session.sink, {k: v / provider.caps.time_scale for k, v in phases.items()})
