"""Is an offer still what it was when the plan was shown? Asked again before money is spent on it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from decimal import Decimal

from gpufleet.domain.market import Offer, OfferQuery
from gpufleet.domain.money import usd_per_hour
from gpufleet.engine.listing import read
from gpufleet.engine.session import Quotes, Session
from gpufleet.providers.base import Provider
from gpufleet.providers.errors import CapacityError, PriceChanged

FRESH_SECONDS = 30.0
"""An offer that was read within so many seconds is taken to hold."""


def note_offers(session: Session, provider: Provider, offers: Iterable[Offer]) -> None:
    """Keep offers that were just read."""
    quotes = session.quotes(provider.name)
    with quotes.lock:
        _note(quotes, offers)


def still_offered(session: Session, provider: Provider, offer: Offer, *, limit: Decimal, disk_gb: int) -> Offer:
    """The offer as it is now: as any node's rent has read it within `FRESH_SECONDS`, else read again.

    Args:
        limit: USD per hour above which it is not wanted.

    Raises:
        CapacityError: it is gone.
        PriceChanged: it costs more than the limit now.
    """
    quotes = session.quotes(provider.name)
    with quotes.lock:
        if not _is_fresh(quotes, offer):
            query = OfferQuery(gpu=offer.gpu, spot=offer.spot, min_disk_gb=disk_gb)
            found = read(provider, lambda: provider.offers(query))
            quotes.last[offer.offer_id] = (time.monotonic(), None)
            _note(quotes, found)
        _, now = quotes.last[offer.offer_id]
    if now is None or now.stock == 0:
        raise CapacityError(f"offer {offer.offer_id} of {provider.name} is gone")
    if now.usd_per_hour > limit:
        told = f"{usd_per_hour(now.usd_per_hour)} now, above {usd_per_hour(limit)}"
        raise PriceChanged(f"offer {offer.offer_id} of {provider.name} costs {told}")
    return now


def _note(quotes: Quotes, offers: Iterable[Offer]) -> None:
    at = time.monotonic()
    quotes.last |= {offer.offer_id: (at, offer) for offer in offers}


def _is_fresh(quotes: Quotes, offer: Offer) -> bool:
    read_at, _ = quotes.last.get(offer.offer_id, (None, None))
    return read_at is not None and time.monotonic() - read_at < FRESH_SECONDS
