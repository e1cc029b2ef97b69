"""Rent one node so that it can never be lost: write ahead, send once, store the answer before using it.

The protocol is that of docs/architecture.md ("Write ahead, then pay"). A create is never resent, save where the
provider promises to make one key's instance only once: an unclear one is looked up by its key in complete listings over
the provider's settle window.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import partial

from gpufleet.domain.market import Instance, Offer, Runtime
from gpufleet.domain.money import usd_per_hour
from gpufleet.domain.nodes import NodeName
from gpufleet.engine.admission import admitted
from gpufleet.engine.clusters import clear_up_cluster
from gpufleet.engine.keys import new_key
from gpufleet.engine.listing import Listing, read
from gpufleet.engine.patience import patiently
from gpufleet.engine.quotes import still_offered
from gpufleet.engine.release import ask_end, decide_end
from gpufleet.engine.sending import intent_of, send_again, send_once
from gpufleet.engine.session import Session
from gpufleet.engine.settling import window_left
from gpufleet.engine.unowned import candidates_told, look_for_unowned
from gpufleet.errors import Interrupted, ProviderRefused
from gpufleet.ledger.records import IntentRecord, IntentState, Rental
from gpufleet.providers.base import CreateRequest, Ownership, Provider
from gpufleet.providers.errors import (
    AmbiguousOutcome,
    CapacityError,
    InstanceNotFound,
    PriceChanged,
)
from gpufleet.serving.inside import image_of, start_of

_LEAST_LOOKUPS = 3


@dataclass(frozen=True)
class Wanted:
    """One node to rent."""

    node: NodeName
    offers: Sequence[Offer]
    """In the order to try."""
    max_usd_per_hour: Decimal | None
    """None: the price seen when the plan was made is the limit."""
    disk_gb: int
    deadline_at: datetime | None
    ssh_public_key: str


def rent(session: Session, provider: Provider, listing: Listing, wanted: Wanted) -> Rental:
    """Rent the first offer that can be had.

    Raises:
        ProviderRefused: no offer could be had; nothing is left running for this node.
        AmbiguousOutcome: the outcome of a create is still unknown; the ledger keeps looking for it.
        Interrupted: the user asked to stop before the next create.
    """
    last: ProviderRefused | None = None
    for offer in wanted.offers:
        try:
            create = partial(_create_once, session, provider, listing, wanted, offer)
            return patiently(session, wanted.node, create)
        except (CapacityError, PriceChanged) as refusal:
            session.store.log_event(session.fleet.name, wanted.node, "offer-refused", _told(offer, refusal))
            last = refusal
    if last is not None:
        raise last
    raise CapacityError(f"no offer fits {wanted.node}", where=str(wanted.node), hint="see: gpufleet plan")


def _told(offer: Offer, refusal: ProviderRefused) -> dict[str, str]:
    return {"offer": offer.offer_id, "kind": type(refusal).__name__, "message": refusal.message}


def _create_once(session: Session, provider: Provider, listing: Listing, wanted: Wanted, offer: Offer) -> Rental:
    limit = offer.usd_per_hour if wanted.max_usd_per_hour is None else wanted.max_usd_per_hour
    with admitted(session, provider, offer, operation="create"):
        key_ref = session.ssh_key_ref(provider, wanted.ssh_public_key)
        offer = still_offered(session, provider, offer, limit=limit, disk_gb=wanted.disk_gb)
        request = _request(session, wanted, offer, limit=limit, key_ref=key_ref)
        session.terms[request.key] = offer

        def create() -> Rental:
            return session.store.record_rental(request.key, provider.create(request))

        made = send_once(session, provider, intent_of(session, provider, request), create)
        if isinstance(made, AmbiguousOutcome) and provider.caps.idempotent_create:
            made = send_again(session, provider, create, made)
    if isinstance(made, AmbiguousOutcome):
        # Looked for outside the turn: others may rent meanwhile.
        made = _found(session, provider, listing, request, made)
    return _within_limit(session, made, limit)


def _found(
    session: Session, provider: Provider, listing: Listing, request: CreateRequest, unclear: AmbiguousOutcome
) -> Rental:
    """What an unclear create made."""
    if provider.caps.ownership is Ownership.NONE:
        if named := _by_id(provider, unclear.instance_ids):
            return _recorded(session, request.key, named)
        raise candidates_told(session, provider, listing, request.key, unclear.message) from unclear
    found = look_up(session, provider, listing, request.key, named=unclear.instance_ids)
    if found is None:
        raise CapacityError(f"the create of {request.node} was lost and nothing was created") from unclear
    return found


def _within_limit(session: Session, rental: Rental, limit: Decimal) -> Rental:
    """What was rented at another price than the offer's is not kept."""
    if rental.usd_per_hour <= limit:
        return rental
    told = f"it costs {usd_per_hour(rental.usd_per_hour)}, above {usd_per_hour(limit)}"
    decide_end(session, rental, told)
    ask_end(session, [rental])
    raise PriceChanged(f"{rental.offer_id} was rented for {rental.node} and is ended: {told}")


def look_up(
    session: Session,
    provider: Provider,
    listing: Listing,
    key: str,
    *,
    named: Sequence[str] = (),
    sent_at: datetime | None = None,
) -> Rental | None:
    """Find what an unclear create made, by key in complete listings and by the ids its error named.

    Looks at least three times and until the provider's settle window after ``sent_at`` (None: now) is over. Further
    instances of the same key are recorded as duplicates, and end. None: presumed absent; later sweeps look again.

    Raises:
        Interrupted: the user asked to stop; the call stays unclear, and the next run looks again.
    """
    deadline = time.monotonic() + window_left(provider, sent_at)
    pause = min(provider.caps.poll_seconds, max(0.05, provider.caps.settle_seconds / 10))
    looks = 0
    while looks < _LEAST_LOOKUPS or time.monotonic() < deadline:
        found = [*listing.inventory(fresh=True).named(key), *_by_id(provider, named)]
        if found:
            return _recorded(session, key, found)
        looks += 1
        if session.stop.wait(pause):
            raise Interrupted(f"interrupted while looking for what the create call {key} made")
    session.store.settle_intent(key, IntentState.PRESUMED_ABSENT)
    return None


def _recorded(session: Session, key: str, found: Sequence[Instance]) -> Rental:
    """Take in what one call made: the first is the rental, all others end at once."""
    rentals = [session.store.record_rental(key, instance) for instance in _unique(found)]
    ask_end(session, [r for r in rentals if r.duplicate])
    return next((r for r in rentals if not r.duplicate), rentals[0])


def clear_up(session: Session, provider: Provider, listing: Listing, intent: IntentRecord) -> Rental | None:
    """Settle an intent that an earlier run left open.

    Raises:
        AmbiguousOutcome: the provider keeps no name of ours, and something new is there.
    """
    key = intent.intent.key
    if intent.intent.members:
        clear_up_cluster(session, provider, intent)
        return None
    if intent.state is IntentState.PREPARED:
        session.store.settle_intent(key, IntentState.NOT_SENT, error="the run ended before the call was sent")
        return None
    if provider.caps.ownership is Ownership.NONE:
        look_for_unowned(session, provider, listing, intent)
        return None
    return look_up(session, provider, listing, key, sent_at=intent.sent_at)


def _by_id(provider: Provider, named: Sequence[str]) -> list[Instance]:
    found = []
    for instance_id in named:
        try:
            found.append(read(provider, lambda i=instance_id: provider.get(i)))  # type: ignore[misc]
        except InstanceNotFound:
            continue
    return found


def _unique(instances: Sequence[Instance]) -> list[Instance]:
    return list({i.instance_id: i for i in instances}.values())


def _request(session: Session, wanted: Wanted, offer: Offer, *, limit: Decimal, key_ref: str | None) -> CreateRequest:
    inside = offer.runtime is Runtime.INSIDE
    return CreateRequest(
        key=new_key(session.fleet.name, wanted.node, session.store.owner_id()),
        fleet=session.fleet.name,
        node=wanted.node,
        offer=offer,
        max_usd_per_hour=limit,
        ssh_public_key=wanted.ssh_public_key,
        disk_gb=wanted.disk_gb,
        deadline_at=wanted.deadline_at,
        ssh_key_ref=key_ref,
        image=image_of(session.fleet, wanted.node) if inside else None,
        start=start_of(wanted.ssh_public_key) if inside else None,
    )
