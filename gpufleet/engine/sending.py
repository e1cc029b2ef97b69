"""One create call: written down before it leaves, sent once, and its outcome on disk before it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gpufleet.engine.admission import take_turn, write_down
from gpufleet.engine.listing import read
from gpufleet.engine.session import Session
from gpufleet.errors import ProviderRefused
from gpufleet.ledger.records import Intent, IntentKind, IntentState
from gpufleet.providers.base import ClusterRequest, CreateRequest, Ownership, Provider
from gpufleet.providers.errors import (
    AmbiguousOutcome,
    AuthError,
    CapacityError,
    InvalidRequest,
    NotSent,
    PaymentError,
    PriceChanged,
    QuotaError,
    RateLimited,
    Unsupported,
)

T = TypeVar("T")
_REFUSALS = (
    RateLimited,
    CapacityError,
    QuotaError,
    PriceChanged,
    InvalidRequest,
    AuthError,
    PaymentError,
    Unsupported,
)
"""Answers after which surely nothing was created."""


def send_once(session: Session, provider: Provider, intent: Intent, call: Callable[[], T]) -> T | AmbiguousOutcome:
    """Make a create call, and record what it made through ``call`` itself.

    Args:
        call: sends the request and stores the answer; returns what was stored.

    Returns:
        What ``call`` gave, or why it is unclear whether anything was made.

    Raises:
        ProviderRefused: surely nothing was.
        LimitReached: one of the fleet's limits; the call was not made.
    """
    store = session.store
    write_down(session, provider, intent)
    try:
        return call()
    except _REFUSALS as no:
        store.settle_intent(intent.key, IntentState.REFUSED, error=no.message)
        raise
    except NotSent as no:
        store.settle_intent(intent.key, IntentState.NOT_SENT, error=no.message)
        raise
    except AmbiguousOutcome as unclear:
        store.settle_intent(intent.key, IntentState.AMBIGUOUS, error=unclear.message)
        return unclear


def send_again(
    session: Session, provider: Provider, call: Callable[[], T], unclear: AmbiguousOutcome
) -> T | AmbiguousOutcome:
    """Make the same call a second time, where the provider promises to make one key's instance only once.

    Returns:
        What ``call`` gave, or why it is still unclear; a refusal now says nothing of the first time.
    """
    take_turn(session, provider, "create")
    try:
        return call()
    except ProviderRefused as again:
        if isinstance(again, AmbiguousOutcome) and again.instance_ids:
            return again
        return unclear


def intent_of(session: Session, provider: Provider, request: CreateRequest | ClusterRequest) -> Intent:
    """A request as it is written down: for one node, or for all of a cluster."""
    offer = request.offer
    whole = isinstance(request, ClusterRequest)
    members = request.nodes if isinstance(request, ClusterRequest) else ()
    return Intent(
        key=request.key,
        fleet=request.fleet,
        node=request.nodes[0] if isinstance(request, ClusterRequest) else request.node,
        provider=provider.name,
        account=session.account(provider),
        offer_id=offer.offer_id,
        gpu=offer.gpu,
        usd_per_hour=offer.usd_per_hour,
        max_usd_per_hour=request.max_usd_per_hour,
        region=offer.region,
        deadline_at=request.deadline_at,
        billing_increment_s=offer.billing_increment_seconds,
        min_rental_s=offer.min_rental_seconds,
        kind=IntentKind.CLUSTER if whole else IntentKind.INSTANCE,
        members=members,
        runtime=offer.runtime,
        seen_before=_seen_before(provider),
    )


def _seen_before(provider: Provider) -> tuple[str, ...] | None:
    """What was there before, where only that can tell what is new."""
    if provider.caps.ownership is not Ownership.NONE:
        return None
    return tuple(i.instance_id for i in read(provider, provider.inventory).instances)
