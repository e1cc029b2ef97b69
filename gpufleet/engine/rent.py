"""Rent one node so that it can never be lost: write ahead, send once, store the answer before using it.

The protocol is that of docs/architecture.md ("Write ahead, then pay"). A create is never resent: an unclear one is
looked up by its key in complete listings over the provider's settle window.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from gpufleet.domain.market import Instance, Offer
from gpufleet.domain.nodes import NodeName
from gpufleet.engine.keys import new_key
from gpufleet.engine.listing import Listing, read
from gpufleet.engine.session import Session
from gpufleet.errors import Interrupted, ProviderRefused
from gpufleet.ledger.records import Intent, IntentRecord, IntentState, Rental
from gpufleet.providers.base import CreateRequest, Provider
from gpufleet.providers.errors import (
    AmbiguousOutcome,
    AuthError,
    CapacityError,
    InstanceNotFound,
    InvalidRequest,
    NotSent,
    PaymentError,
    PriceChanged,
    QuotaError,
    RateLimited,
    Unsupported,
)

_SENDS_PER_OFFER = 4
"""Creates that were surely refused before processing (429, connection refused) are asked again, with a new key."""
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
            return _rent_offer(session, provider, listing, wanted, offer)
        except (CapacityError, PriceChanged) as refusal:
            session.store.log_event(session.fleet.name, wanted.node, "offer-refused", _told(offer, refusal))
            last = refusal
    if last is not None:
        raise last
    raise CapacityError(f"no offer fits {wanted.node}", where=str(wanted.node), hint="see: gpufleet plan")


def _told(offer: Offer, refusal: ProviderRefused) -> dict[str, str]:
    return {"offer": offer.offer_id, "kind": type(refusal).__name__, "message": refusal.message}


def _rent_offer(session: Session, provider: Provider, listing: Listing, wanted: Wanted, offer: Offer) -> Rental:
    for attempt in range(_SENDS_PER_OFFER):
        if session.stop.is_set():
            raise Interrupted("interrupted before renting the next node", where=str(wanted.node))
        try:
            return _create_once(session, provider, listing, wanted, offer)
        except (RateLimited, NotSent) as refusal:
            if attempt == _SENDS_PER_OFFER - 1:
                raise
            pause = refusal.retry_after if isinstance(refusal, RateLimited) else 0.5 * 2**attempt
            session.stop.wait(pause)
    raise AssertionError("unreachable")


def _create_once(session: Session, provider: Provider, listing: Listing, wanted: Wanted, offer: Offer) -> Rental:
    store = session.store
    request = _request(session, wanted, offer)
    session.terms[request.key] = offer
    store.open_intent(_intent(session, provider, request))
    store.mark_sent(request.key)
    try:
        instance = provider.create(request)
    except (
        RateLimited,
        CapacityError,
        QuotaError,
        PriceChanged,
        InvalidRequest,
        AuthError,
        PaymentError,
        Unsupported,
    ) as no:
        store.settle_intent(request.key, IntentState.REFUSED, error=no.message)
        raise
    except NotSent as no:
        store.settle_intent(request.key, IntentState.NOT_SENT, error=no.message)
        raise
    except AmbiguousOutcome as unclear:
        store.settle_intent(request.key, IntentState.AMBIGUOUS, error=unclear.message)
        found = look_up(session, provider, listing, request.key, named=unclear.instance_ids)
        if found is None:
            raise CapacityError(f"the create of {wanted.node} was lost and nothing was created") from unclear
        return found
    return record(session, request.key, instance)


def record(session: Session, key: str, instance: Instance) -> Rental:
    """Store what a create gave before anything else is done with it."""
    offer = session.terms.get(key)
    if offer is None:
        return session.store.record_rental(key, instance)
    return session.store.record_rental(
        key, instance, billing_increment_s=offer.billing_increment_seconds, min_rental_s=offer.min_rental_seconds
    )


def look_up(
    session: Session, provider: Provider, listing: Listing, key: str, *, named: Sequence[str] = ()
) -> Rental | None:
    """Find what an unclear create made, by key in complete listings and by the ids its error named.

    Looks at least three times and for the provider's settle window. Further instances of the same key are recorded as
    duplicates, which the next release terminates. None: presumed absent; later sweeps look again.
    """
    deadline = time.monotonic() + provider.caps.settle_seconds
    pause = min(provider.caps.poll_seconds, max(0.05, provider.caps.settle_seconds / 10))
    looks = 0
    while looks < _LEAST_LOOKUPS or time.monotonic() < deadline:
        found = [*listing.inventory(fresh=True).named(key), *_by_id(provider, named)]
        if found:
            rentals = [record(session, key, instance) for instance in _unique(found)]
            return next((r for r in rentals if not r.duplicate), rentals[0])
        looks += 1
        threading.Event().wait(pause)
    session.store.settle_intent(key, IntentState.PRESUMED_ABSENT)
    return None


def clear_up(session: Session, provider: Provider, listing: Listing, intent: IntentRecord) -> Rental | None:
    """Settle an intent that an earlier run left open."""
    key = intent.intent.key
    if intent.state is IntentState.PREPARED:
        session.store.settle_intent(key, IntentState.NOT_SENT, error="the run ended before the call was sent")
        return None
    return look_up(session, provider, listing, key)


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


def _request(session: Session, wanted: Wanted, offer: Offer) -> CreateRequest:
    limit = offer.usd_per_hour if wanted.max_usd_per_hour is None else wanted.max_usd_per_hour
    return CreateRequest(
        key=new_key(session.fleet.name, wanted.node),
        fleet=session.fleet.name,
        node=wanted.node,
        offer=offer,
        max_usd_per_hour=limit,
        ssh_public_key=wanted.ssh_public_key,
        disk_gb=wanted.disk_gb,
        deadline_at=wanted.deadline_at,
    )


def _intent(session: Session, provider: Provider, request: CreateRequest) -> Intent:
    offer = request.offer
    return Intent(
        key=request.key,
        fleet=request.fleet,
        node=request.node,
        provider=provider.name,
        account=session.account(provider),
        offer_id=offer.offer_id,
        gpu=offer.gpu,
        usd_per_hour=offer.usd_per_hour,
        max_usd_per_hour=request.max_usd_per_hour,
        region=offer.region,
        deadline_at=request.deadline_at,
    )
