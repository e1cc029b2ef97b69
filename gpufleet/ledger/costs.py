"""The bill, worked out from rentals. Nothing here is rounded to cents."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from gpufleet.domain.money import charge
from gpufleet.domain.status import Bill, BillLine
from gpufleet.ledger.errors import BadValue
from gpufleet.ledger.records import Rental
from gpufleet.ledger.store import Store

_HOUR = Decimal(3600)


def bill(store: Store, fleet: str, now: datetime) -> Bill:
    """Everything the fleet has cost up to ``now``, duplicates and failed nodes included, by start.

    Raises:
        BadValue: ``now`` has no time zone.
    """
    if now.tzinfo is None:
        raise BadValue(f"the time {now.isoformat()} has no time zone")
    rentals = store.rentals(fleet, live_only=False)
    return Bill(tuple(_line(rental, now) for rental in sorted(rentals, key=lambda r: (r.started_at, r.rental_id))))


def spent_since(store: Store, fleet: str, since: datetime, now: datetime) -> Decimal:
    """What the fleet has cost from ``since`` to ``now``; an increment counts where it begins."""
    rentals = store.rentals(fleet, live_only=False)
    return sum((_between(rental, since, rental.ended_at or now) for rental in rentals), Decimal(0))


def _between(rental: Rental, since: datetime, until: datetime) -> Decimal:
    before = cost(rental, min(since, until)) if rental.started_at < since else Decimal(0)
    return max(cost(rental, until) - before, Decimal(0))


def _line(rental: Rental, now: datetime) -> BillLine:
    return BillLine(
        node=rental.node,
        provider=rental.provider,
        instance_id=rental.instance_id,
        usd_per_hour=rental.usd_per_hour,
        started=rental.started_at,
        ended=rental.ended_at,
        usd=cost(rental, rental.ended_at or now),
    )


def cost(rental: Rental, until: datetime) -> Decimal:
    """USD from the rental's start to ``until``, in the provider's billing increments and with its minimum.

    A price that changed holds from when we saw it; the last increment is charged at the last price.
    """
    total = charge(
        rental.usd_per_hour,
        rental.started_at,
        until,
        increment_s=rental.billing_increment_s,
        minimum_s=rental.min_rental_s,
    )
    for rate, later in zip(rental.rates, rental.rates[1:], strict=False):
        hours = Decimal(max(0.0, (min(later.since, until) - rate.since).total_seconds())) / _HOUR
        total += (rate.usd_per_hour - rental.usd_per_hour) * hours
    return max(total, Decimal(0))
