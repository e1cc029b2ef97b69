"""May another node be rented now? Asked right before each create call, of the ledger and not of this run's memory.

A loop of failing runs, a provider that loses every answer, or a fleet file with a slip in it must not rent without end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal

from gpufleet.domain.market import Offer
from gpufleet.domain.money import usd, usd_per_hour
from gpufleet.engine.session import Session, now
from gpufleet.errors import Interrupted
from gpufleet.ledger.records import Intent, IntentState
from gpufleet.providers.base import Ownership, Paced, Provider
from gpufleet.providers.errors import LimitReached, Unsupported

_WINDOW = timedelta(hours=1)
_CREATES_PER_NODE = 5
_LEAST_CREATES = 20
_UNCLEAR_IN_A_ROW = 5
_UNCLEAR = {IntentState.AMBIGUOUS, IntentState.PRESUMED_ABSENT}
_LOCK = threading.Lock()


@contextmanager
def admitted(session: Session, provider: Provider, offer: Offer, *, nodes: int = 1, operation: str) -> Iterator[None]:
    """Hold a turn at this provider for one create call.

    Raises:
        LimitReached: one of the fleet's limits, or too many calls of unclear outcome.
        Unsupported: nothing may be rented at this provider, or not this offer.
        Interrupted: the user asked to stop while the turn was waited for.
    """
    with session.turns(provider):
        if refused := provider.caps.create_refused:
            raise Unsupported(refused)
        with _LOCK:
            _check(session, provider, offer.usd_per_hour, nodes)
        take_turn(session, provider, operation)
        yield


def take_turn(session: Session, provider: Provider, operation: str) -> None:
    """Wait until the provider's own pace allows the next call.

    Raises:
        Interrupted: the user asked to stop.
    """
    if isinstance(provider, Paced) and session.stop.wait(provider.wait_before(operation)):
        raise Interrupted(f"interrupted before the next call to {provider.name}")


def write_down(session: Session, provider: Provider, intent: Intent) -> None:
    """Check once more and write the call down as sent, in one step: of calls side by side each sees all others.

    Raises:
        LimitReached: says which limit, and how it is raised.
    """
    with _LOCK:
        _check(session, provider, intent.usd_per_hour, len(intent.nodes))
        session.store.open_intent(intent)
        session.store.mark_sent(intent.key)


def _check(session: Session, provider: Provider, each: Decimal, nodes: int) -> None:
    _check_count(session, nodes)
    _check_price(session, each * nodes)
    _check_rate(session)
    _check_clarity(session, provider)


def _check_count(session: Session, nodes: int) -> None:
    limit = session.fleet.budget.max_nodes
    if limit is None:
        return
    held = len(session.store.rentals(session.fleet.name))
    held += sum(len(i.intent.nodes) for i in session.store.open_intents(session.fleet.name))
    if held + nodes > limit:
        raise LimitReached(
            f"{held} nodes are rented or may be, and budget.max_nodes is {limit}",
            hint=f"gpufleet status {session.path}",
        )


def _check_price(session: Session, more: Decimal) -> None:
    limit = session.fleet.budget.max_usd_per_hour
    if limit is None:
        return
    rate = sum((r.usd_per_hour for r in session.store.rentals(session.fleet.name) if r.state.may_bill), Decimal(0))
    unclear = session.store.pending_usd_per_hour(session.fleet.name)
    if rate + unclear + more > limit:
        raise LimitReached(
            f"{usd_per_hour(rate)} are rented and {usd_per_hour(unclear)} may be; {usd_per_hour(more)} more is above "
            f"budget.max_usd_per_hour {usd(limit)}",
            hint=f"gpufleet status {session.path}",
        )


def _check_rate(session: Session) -> None:
    fleet = session.fleet
    default = max(_LEAST_CREATES, _CREATES_PER_NODE * len(fleet.nodes()))
    limit = fleet.budget.max_creates_per_hour or default
    since = now() - _WINDOW
    done = session.store.creates_since(fleet.name, since)
    if done >= limit:
        raise LimitReached(
            f"{done} create calls within an hour, the limit is {limit}: something rents and fails again and again; "
            f"the next one is made after {_opens(_sent_since(session, since)[-limit])}",
            hint=f"see why: gpufleet status {session.path}; to go on now, raise budget.max_creates_per_hour",
        )


def _sent_since(session: Session, since: datetime) -> list[datetime]:
    """When the calls left that count, the oldest first."""
    calls = session.store.intents(session.fleet.name)
    return sorted(c.sent_at for c in calls if c.sent_at and c.sent_at >= since and c.state is not IntentState.NOT_SENT)


def _opens(counted_since: datetime) -> str:
    """When what counts since then counts no more."""
    return f"{counted_since + _WINDOW + timedelta(minutes=1):%H:%M} UTC"


def _check_clarity(session: Session, provider: Provider) -> None:
    """A provider that loses every answer is not asked on: each lost answer may be a paid node."""
    last = session.store.last_outcomes(session.fleet.name, provider.name, _UNCLEAR_IN_A_ROW)
    recent = [r for r in last if r.settled_at is not None and r.settled_at > now() - _WINDOW]
    nameless = provider.caps.ownership is Ownership.NONE
    enough, unclear = (1, {IntentState.AMBIGUOUS}) if nameless else (_UNCLEAR_IN_A_ROW, _UNCLEAR)
    if len(recent) >= enough and all(r.state in unclear for r in recent[:enough]):
        raise LimitReached(
            f"the last {enough} create calls at {provider.name} had no clear outcome; "
            f"the next one is made after {_opens(min(r.settled_at for r in recent[:enough] if r.settled_at))}",
            hint=f"look what is there: gpufleet reconcile {session.path}",
        )
