"""What is, for the planner: the ledger, offers for what may be rented, and the router's view of who is healthy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from gpufleet.catalog.sizing import needs
from gpufleet.catalog.timing import phase_seconds
from gpufleet.domain.market import InstanceState, Offer, OfferQuery
from gpufleet.domain.nodes import NodeName, Role
from gpufleet.domain.status import Serving
from gpufleet.engine.front import seen_serving
from gpufleet.engine.listing import read
from gpufleet.engine.quotes import note_offers
from gpufleet.engine.router import asked_front
from gpufleet.engine.session import Session, now
from gpufleet.errors import ProviderRefused
from gpufleet.ledger.costs import bill, spent_since
from gpufleet.ledger.records import Rental
from gpufleet.planning.model import Desired, Observed, ObservedNode, Plan, desired_up
from gpufleet.planning.planner import plan
from gpufleet.planning.schedule import midnight
from gpufleet.planning.suitable import suitable
from gpufleet.providers.base import Provider
from gpufleet.serving.settings import fleet_settings
from gpufleet.spec.model import Fleet


def plan_now(session: Session) -> Plan:
    """What `up` would do as things are. Pure but for reading offers; run `refresh` or `sweep` before it."""
    return plan(desired(session), observed(session), now())


def desired(session: Session) -> Desired:
    """What the fleet file asks for."""
    fleet = session.fleet
    nodes = fleet.nodes()
    scale = max((p.caps.time_scale for p in session.providers()), default=1.0)
    return desired_up(
        fleet,
        settings=fleet_settings(fleet),
        durations={node: sum(expected_phases(session, node).values()) for node in nodes},
        time_scale=scale,
    )


def expected_phases(session: Session, node: NodeName) -> Mapping[str, float]:
    """Expected simulated seconds per phase of a node, boot left out."""
    role = session.fleet.role_of(node.pool)
    return phase_seconds(role, first_decode=node == session.fleet.first_of(Role.DECODE))


def observed(session: Session) -> Observed:
    """The fleet as it is. Reads the ledger; run `sweep` before it to have the providers' view in there."""
    store, fleet = session.store, session.fleet
    rentals = store.rentals(fleet.name)
    ending = {(o.provider, o.ref) for o in store.ending_obligations(fleet.name)}
    with asked_front(session) as front:
        sick = front.sick_nodes()
    return Observed(
        nodes=[_node(r, ending=(r.provider, r.instance_id) in ending, sick=r.node in sick) for r in rentals],
        offers=_offers(session, _short(session, [r for r in rentals if (r.provider, r.instance_id) not in ending])),
        pending_usd_per_hour=store.pending_usd_per_hour(fleet.name),
        spent_usd=bill(store, fleet.name, now()).total,
        spent_today_usd=spent_since(store, fleet.name, midnight(fleet, now()), now()),
    )


def _node(rental: Rental, *, ending: bool, sick: bool) -> ObservedNode:
    return ObservedNode(
        node=rental.node,
        provider=rental.provider,
        instance_id=rental.instance_id,
        usd_per_hour=rental.usd_per_hour,
        gpu=rental.gpu,
        region=rental.region,
        state=rental.state,
        serving=seen_serving(rental, sick=sick),
        settings=rental.settings,
        key=rental.key,
        duplicate=rental.duplicate,
        ending=ending,
        cluster_id=rental.cluster_id,
    )


def _short(session: Session, rentals: Sequence[Rental]) -> list[str]:
    """Pools that may need a new rental: a healthy fleet asks for no offers at all."""
    fleet = session.fleet
    held = {
        r.node
        for r in rentals
        if r.serving is Serving.READY and r.state is InstanceState.RUNNING and _fits(fleet, r) and not r.duplicate
    }
    return [pool for pool in fleet.pools if any(n not in held for n in fleet.nodes() if n.pool == pool)]


def _fits(fleet: Fleet, rental: Rental) -> bool:
    """Whether the rental is what the file asks for; what is not is replaced."""
    if rental.node.pool not in fleet.pools:
        return False
    pool = fleet.pools[rental.node.pool]
    allowed = {use.use for use in fleet.providers_of(rental.node.pool)}
    return pool.region in {None, rental.region} and rental.provider in allowed and rental.gpu == pool.gpu


def _offers(session: Session, pools: Sequence[str]) -> dict[str, Sequence[Offer]]:
    """Asked for once per run: what is planned again under the fleet's lock has the prices that the user saw."""
    unknown = [name for name in pools if name not in session.offers]
    if unknown:
        with ThreadPoolExecutor(max_workers=len(unknown)) as pool:
            found = pool.map(lambda name: _offers_for(session, name), unknown)
            session.offers |= dict(zip(unknown, found, strict=True))
    return {name: session.offers[name] for name in pools}


def _offers_for(session: Session, name: str) -> list[Offer]:
    fleet = session.fleet
    pool = fleet.pools[name]
    need = needs(fleet.model.id, fleet.role_of(name))
    query = OfferQuery(gpu=pool.gpu, region=pool.region, min_disk_gb=pool.disk_gb or need.disk_gb)
    found: list[Offer] = []
    failures: list[ProviderRefused] = []
    for use in fleet.providers_of(name):
        try:
            found += _offers_at(session, session.provider(use), query)
        except ProviderRefused as failure:
            failures.append(failure)
    if len(failures) == len(fleet.providers_of(name)):
        raise failures[0]
    kept, notes = suitable(fleet, found, now())
    session.notes |= {f"{failure.where or 'a provider'} is left out: {failure.message}" for failure in failures}
    session.notes |= {*notes}
    return kept


def _offers_at(session: Session, provider: Provider, query: OfferQuery) -> list[Offer]:
    found = read(provider, lambda: provider.offers(query))
    note_offers(session, provider, found)
    return found
