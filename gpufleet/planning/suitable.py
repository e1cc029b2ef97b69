"""Offers that a fleet must not take, however cheap: what is told beforehand need not be found out with money."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from gpufleet.domain.market import Offer
from gpufleet.spec.model import Fleet

_WITHOUT_RDMA = {"none", "eth"}


def suitable(fleet: Fleet, offers: Iterable[Offer], now: datetime) -> tuple[list[Offer], list[str]]:
    """The offers that may be taken, and a sentence on those that may not.

    Args:
        now: when the rental would begin.
    """
    kept: list[Offer] = []
    refused: dict[tuple[str, str], list[Offer]] = {}
    for offer in offers:
        reason = _reason_against(fleet, offer, now)
        if reason is None:
            kept.append(offer)
        else:
            refused.setdefault((offer.provider, reason), []).append(offer)
    return kept, [_told(provider, reason, left_out) for (provider, reason), left_out in refused.items()]


def _reason_against(fleet: Fleet, offer: Offer, now: datetime) -> str | None:
    if fleet.network.rdma == "required" and offer.interconnect in _WITHOUT_RDMA:
        return "no RDMA, and network.rdma is required"
    ttl = fleet.budget.ttl
    if ttl is not None and offer.contract_end is not None and offer.contract_end < now + ttl:
        return "taken back by the provider before budget.ttl is over"
    return None


def _told(provider: str, reason: str, left_out: Sequence[Offer]) -> str:
    """``mock: 2 offers of H100:8 are left out: no RDMA, and network.rdma is required``."""
    shapes = ", ".join(sorted({str(offer.gpu) for offer in left_out}))
    count = "1 offer" if len(left_out) == 1 else f"{len(left_out)} offers"
    return f"{provider}: {count} of {shapes} left out: {reason}"
