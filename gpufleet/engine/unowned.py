"""Unclear creates at a provider that keeps no name of ours: nothing there says whose it is.

What was not there before the call is a candidate. It is shown and never touched, for it may be somebody else's; while
there is one, nothing more is rented there.
"""

from __future__ import annotations

import time

from gpufleet.engine.listing import Listing
from gpufleet.engine.session import Session
from gpufleet.engine.settling import window_left
from gpufleet.errors import Interrupted
from gpufleet.ledger.records import IntentRecord, IntentState
from gpufleet.providers.base import Provider
from gpufleet.providers.errors import AmbiguousOutcome

_LEAST_LOOKS = 3


def look_for_unowned(session: Session, provider: Provider, listing: Listing, intent: IntentRecord) -> None:
    """Settle an unclear call as absent, once nothing new has shown up over the provider's settle window.

    Raises:
        AmbiguousOutcome: something new is there; the call stays unclear until it is adopted or gone.
        Interrupted: the user asked to stop.
    """
    deadline = time.monotonic() + window_left(provider, intent.sent_at)
    looks = 0
    while looks < _LEAST_LOOKS or time.monotonic() < deadline:
        if _candidates(session, provider, listing, intent):
            why = intent.error or "a create call had no answer"
            raise candidates_told(session, provider, listing, intent.intent.key, why)
        looks += 1
        if session.stop.wait(min(provider.caps.poll_seconds, 5.0)):
            raise Interrupted(f"interrupted while looking for what the create call {intent.intent.key} made")
    session.store.settle_intent(intent.intent.key, IntentState.PRESUMED_ABSENT)


def candidates_told(session: Session, provider: Provider, listing: Listing, key: str, why: str) -> AmbiguousOutcome:
    """The failure that names what is new there, and how to go on."""
    (intent,) = [i for i in session.store.intents(session.fleet.name) if i.intent.key == key]
    new = _candidates(session, provider, listing, intent)
    told = f"new there since: {', '.join(new)}" if new else "nothing new is there yet"
    failure = AmbiguousOutcome(f"{why}; {provider.name} keeps no name of ours, and {told}")
    node = intent.intent.node
    failure.hint = (
        f"if one of them is yours: gpufleet adopt {session.path} {node}=ID; else look again when they are gone"
    )
    return failure


def _candidates(session: Session, provider: Provider, listing: Listing, intent: IntentRecord) -> list[str]:
    """Ids that were not there before the call, and that no record of ours explains."""
    known = {r.instance_id for r in session.store.rentals(live_only=False) if r.provider == provider.name}
    known |= set(intent.intent.seen_before or ())
    listed = listing.inventory(fresh=True).instances
    return [i.instance_id for i in listed if i.instance_id not in known and i.state.may_bill]
