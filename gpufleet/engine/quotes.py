"""Is an offer still what it was when the plan was shown? Asked again before money is spent on it."""

from __future__ import annotations

import time
from decimal import Decimal

from gpufleet.domain.market import Offer, OfferQuery
from gpufleet.domain.money import usd_per_hour
from gpufleet.engine.listing import read
from gpufleet.engine.session import Session
from gpufleet.providers.base import Provider
from gpufleet.providers.errors import CapacityError, PriceChanged

FRESH_SECONDS = 30.0
"""An offer that was read within so many seconds is taken to hold."""


def still_offered(session: Session, provider: Provider, offer: Offer, *, limit: Decimal, disk_gb: int) -> Offer:
    """The offer as it is now.

    Args:
        limit: USD per hour above which it is not wanted.

    Raises:
        CapacityError: it is gone.
        PriceChanged: it costs more than the limit now.
    """
    age = time.monotonic() - session.quoted_at.get(provider.name, 0.0)
    if age < FRESH_SECONDS:
        return offer
    query = OfferQuery(gpu=offer.gpu, spot=offer.spot, min_disk_gb=disk_gb)
    found = read(provider, lambda: provider.offers(query))
    session.quoted_at[provider.name] = time.monotonic()
    now = next((o for o in found if o.offer_id == offer.offer_id), None)
    if now is None:
        raise CapacityError(f"offer {offer.offer_id} of {provider.name} is gone")
    if now.usd_per_hour > limit:
        told = f"{usd_per_hour(now.usd_per_hour)} now, above {usd_per_hour(limit)}"
        raise PriceChanged(f"offer {offer.offer_id} of {provider.name} costs {told}")
    return now
