"""Rent several equal nodes on one fabric as a whole: written ahead and sent once like a single node, all or none.

The cluster is an obligation of its own from the provider's answer on; its members become rentals as the provider tells
them. Whatever ends one of them ends the cluster.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from gpufleet.domain.market import ExtraKind, InstanceState, Offer, Runtime
from gpufleet.domain.money import usd_per_hour
from gpufleet.domain.nodes import NodeName
from gpufleet.engine.admission import admitted
from gpufleet.engine.keys import new_key
from gpufleet.engine.listing import Listing, read
from gpufleet.engine.patience import patiently
from gpufleet.engine.quotes import still_offered
from gpufleet.engine.release import ask_end, decide_end
from gpufleet.engine.sending import intent_of, send_once
from gpufleet.engine.session import Session
from gpufleet.engine.settling import window_left
from gpufleet.errors import Interrupted, NodeFailed
from gpufleet.ledger.records import IntentRecord, IntentState, Obligation, ObligationState, Rental
from gpufleet.providers.base import Cluster, ClusterRequest, Provider, RentsClusters
from gpufleet.providers.errors import CapacityError, InstanceNotFound, PriceChanged, Unsupported
from gpufleet.serving.inside import image_of, start_of

_LEAST_LOOKUPS = 3
_MEMBERS_SECONDS = 3600.0
"""How long a provider may take to name all members; they cost money all the while."""
_DEAD = {InstanceState.ERROR, InstanceState.TERMINATED, InstanceState.STOPPED, InstanceState.PREEMPTED}


@dataclass(frozen=True)
class WantedCluster:
    """Nodes to rent together."""

    nodes: tuple[NodeName, ...]
    """By rank."""
    offer: Offer
    max_usd_per_hour: Decimal
    """For one node."""
    disk_gb: int
    deadline_at: datetime | None
    ssh_public_key: str


def rent_cluster(
    session: Session, provider: Provider, listing: Listing, wanted: WantedCluster
) -> dict[NodeName, Rental]:
    """Rent all of them, and wait until the provider has named each.

    Raises:
        ProviderRefused: nothing was rented, or at another price than the offer's: its end is decided then.
        NodeFailed: the cluster did not come up whole; its end is decided.
        Interrupted: the user asked to stop; the next run goes on.
    """
    return patiently(session, wanted.nodes[0], lambda: _rent_once(session, provider, listing, wanted))


def _rent_once(session: Session, provider: Provider, listing: Listing, wanted: WantedCluster) -> dict[NodeName, Rental]:
    limit = wanted.max_usd_per_hour
    with admitted(session, provider, wanted.offer, nodes=len(wanted.nodes), operation="create_cluster"):
        key_ref = session.ssh_key_ref(provider, wanted.ssh_public_key)
        offer = still_offered(session, provider, wanted.offer, limit=limit, disk_gb=wanted.disk_gb)
        request = _request(session, wanted, offer, key_ref)
        session.terms[request.key] = offer
        intent = intent_of(session, provider, request)
        unclear = send_once(session, provider, intent, lambda: _create(session, provider, request))
    if unclear is not None and look_up_cluster(session, provider, request.key) is None:
        raise CapacityError(f"the create of a cluster for {wanted.nodes[0]} was lost and made nothing") from unclear
    return _within_limit(session, await_members(session, provider, listing, request.key, wanted.nodes), limit)


def _within_limit(session: Session, rentals: dict[NodeName, Rental], limit: Decimal) -> dict[NodeName, Rental]:
    """A cluster of which one node costs more than was agreed is not kept."""
    dearest = max(rentals.values(), key=lambda rental: rental.usd_per_hour)
    if dearest.usd_per_hour <= limit:
        return rentals
    told = f"its nodes cost {usd_per_hour(dearest.usd_per_hour)}, above {usd_per_hour(limit)}"
    decide_end(session, dearest, told)
    ask_end(session, list(rentals.values()))
    raise PriceChanged(f"{dearest.offer_id} was rented as a cluster and is ended: {told}")


def look_up_cluster(session: Session, provider: Provider, key: str, *, sent_at: datetime | None = None) -> str | None:
    """Find what an unclear create made, by its name in complete listings; a second one of that name ends.

    Raises:
        Interrupted: the user asked to stop; the call stays unclear.
    """
    deadline = time.monotonic() + window_left(provider, sent_at)
    looks = 0
    while looks < _LEAST_LOOKUPS or time.monotonic() < deadline:
        found = [c for c in read(provider, _renter(provider).clusters) if c.name == key]
        for cluster in found:
            _record(session, provider, key, cluster)
        if found:
            return session.store.cluster_of(key)
        looks += 1
        if session.stop.wait(min(provider.caps.poll_seconds, 5.0)):
            raise Interrupted(f"interrupted while looking for what the create call {key} made")
    session.store.settle_intent(key, IntentState.PRESUMED_ABSENT)
    return None


def take_in_clusters(session: Session, provider: Provider) -> None:
    """Record clusters under a key of ours that no record knows: late answers to lost creates, and second ones."""
    if not isinstance(provider, RentsClusters):
        return
    recent = session.store.recent_creates(session.fleet.name)
    fresh = {i.intent.key for i in recent if i.intent.provider == provider.name and i.intent.members}
    if fresh:
        for cluster in read(provider, provider.clusters):
            if cluster.name in fresh and cluster.state.may_bill:
                _record(session, provider, cluster.name, cluster)


def go_on_with_clusters(session: Session, provider: Provider, listing: Listing) -> None:
    """Take in the members of clusters that an earlier run rented and did not see whole."""
    if not isinstance(provider, RentsClusters):
        return
    intents = {i.intent.key: i for i in session.store.intents(session.fleet.name) if i.intent.members}
    for obligation in session.store.open_obligations(session.fleet.name):
        if _is_of(obligation, provider) and obligation.parent in intents:
            record = intents[obligation.parent]
            if obligation.state is ObligationState.HELD and _members(session, obligation) < len(record.intent.members):
                await_members(session, provider, listing, record.intent.key, record.intent.members)


def clear_up_cluster(session: Session, provider: Provider, intent: IntentRecord) -> None:
    """Settle a cluster's create call that an earlier run left open."""
    if intent.state is IntentState.PREPARED:
        why = "the run ended before the call was sent"
        session.store.settle_intent(intent.intent.key, IntentState.NOT_SENT, error=why)
    else:
        look_up_cluster(session, provider, intent.intent.key, sent_at=intent.sent_at)


def await_members(
    session: Session, provider: Provider, listing: Listing, key: str, nodes: Sequence[NodeName]
) -> dict[NodeName, Rental]:
    """Record the members as they appear, until there is one for each node.

    Raises:
        NodeFailed: not all came, or the cluster failed; its end is decided.
        Interrupted: the user asked to stop.
    """
    cluster_id = session.store.cluster_of(key)
    assert cluster_id is not None
    deadline = time.monotonic() + _MEMBERS_SECONDS / provider.caps.time_scale
    while True:
        cluster = _look(provider, cluster_id)
        if cluster is not None:
            session.store.hold_extras(provider.name, cluster_id, cluster.extras, fleet=session.fleet.name)
        inventory = listing.inventory(fresh=True)
        mine = [i for i in inventory.instances if i.cluster_id == cluster_id and i.state.may_bill]
        rentals = {r.node: r for r in (session.store.record_rental(key, i) for i in mine) if not r.duplicate}
        if set(nodes) <= set(rentals):
            return rentals
        if (cluster and cluster.state in _DEAD) or time.monotonic() > deadline:
            raise _failed(session, provider, cluster_id, nodes, set(rentals))
        if session.stop.wait(provider.caps.poll_seconds):
            raise Interrupted("interrupted while a cluster comes up", where=str(nodes[0]))


def _failed(
    session: Session, provider: Provider, cluster_id: str, nodes: Sequence[NodeName], there: set[NodeName]
) -> NodeFailed:
    why = f"only {len(there)} of {len(nodes)} nodes of the cluster came"
    session.store.oblige(provider.name, cluster_id, fleet=session.fleet.name, reason=why, kind=ExtraKind.CLUSTER)
    return NodeFailed(f"{why}; {provider.name} cluster {cluster_id} is ended", where=str(nodes[0]))


def _create(session: Session, provider: Provider, request: ClusterRequest) -> None:
    _record(session, provider, request.key, _renter(provider).create_cluster(request))


def _record(session: Session, provider: Provider, key: str, cluster: Cluster) -> None:
    session.store.record_cluster(key, provider.name, cluster.cluster_id)
    session.store.hold_extras(provider.name, cluster.cluster_id, cluster.extras, fleet=session.fleet.name)


def _look(provider: Provider, cluster_id: str) -> Cluster | None:
    try:
        return read(provider, lambda: _renter(provider).cluster(cluster_id))
    except InstanceNotFound:
        return None


def _renter(provider: Provider) -> RentsClusters:
    if not isinstance(provider, RentsClusters):
        raise Unsupported(f"{provider.name} does not rent clusters")
    return provider


def _is_of(obligation: Obligation, provider: Provider) -> bool:
    return obligation.kind == ExtraKind.CLUSTER and obligation.provider == provider.name


def _members(session: Session, cluster: Obligation) -> int:
    return sum(r.cluster_id == cluster.ref for r in session.store.rentals(session.fleet.name))


def _request(session: Session, wanted: WantedCluster, offer: Offer, key_ref: str | None) -> ClusterRequest:
    first = wanted.nodes[0]
    inside = offer.runtime is Runtime.INSIDE
    return ClusterRequest(
        key=new_key(session.fleet.name, first, session.store.owner_id()),
        fleet=session.fleet.name,
        nodes=wanted.nodes,
        offer=offer,
        max_usd_per_hour=wanted.max_usd_per_hour,
        ssh_public_key=wanted.ssh_public_key,
        disk_gb=wanted.disk_gb,
        deadline_at=wanted.deadline_at,
        ssh_key_ref=key_ref,
        image=image_of(session.fleet, first) if inside else None,
        start=start_of(wanted.ssh_public_key) if inside else None,
    )
