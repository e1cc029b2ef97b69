"""Does an offer fit a query?"""

from __future__ import annotations

from gpufleet.domain.market import Offer, OfferQuery


def fits(offer: Offer, query: OfferQuery) -> bool:
    """True when the offer can be rented and has what is asked for.

    A size that the provider does not tell counts as fitting: the node is checked before anything is started on it.
    """
    limit = query.max_usd_per_hour
    return (
        offer.stock != 0
        and offer.spot == query.spot
        and query.gpu in {None, offer.gpu}
        and query.region in {None, offer.region}
        and (offer.disk_gb is None or offer.disk_gb >= query.min_disk_gb)
        and (offer.ram_gb is None or offer.ram_gb >= query.min_ram_gb)
        and (limit is None or offer.usd_per_hour <= limit)
    )
