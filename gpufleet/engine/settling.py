"""How long a provider may take until it shows what it has created."""

from __future__ import annotations

from datetime import datetime, timedelta

from gpufleet.engine.session import Session, now
from gpufleet.ledger.records import Rental
from gpufleet.providers.base import Lifetime, Provider


def settling(session: Session, provider: Provider, rental: Rental) -> bool:
    """Whether the rental is so fresh that its absence says nothing: the provider may not show it yet."""
    if provider.caps.lifetime is Lifetime.RELEASE:
        return False
    sent = session.store.sent_at(rental.key)
    return sent is not None and window_left(provider, sent) > 0


def window_left(provider: Provider, sent_at: datetime | None) -> float:
    """Seconds that are left of a create call's settle window; all of it where the clock was set back since."""
    window = provider.caps.settle_seconds
    if sent_at is None or sent_at > now():
        return window
    return max(0.0, (sent_at + timedelta(seconds=window) - now()).total_seconds())
