"""What a fleet has cost, in parts: by pool, node, provider or day. The parts sum to the whole, whatever the cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from zoneinfo import ZoneInfo

from gpufleet.domain.money import charge
from gpufleet.ledger.costs import cost
from gpufleet.ledger.obligations import INSTANCE
from gpufleet.ledger.records import Obligation, Rental
from gpufleet.ledger.store import Store

EXTRAS = "disks and more"
"""Where charges go that are no node's: volumes that outlive their instances."""


class Cut(StrEnum):
    """What a bill is cut by."""

    POOL = "pool"
    NODE = "node"
    PROVIDER = "provider"
    DAY = "day"


@dataclass(frozen=True)
class Part:
    """One part of a bill."""

    name: str
    hours: Decimal
    """Node-hours from start to end, as they ran and not as they were rounded."""
    usd: Decimal


@dataclass(frozen=True)
class _Paid:
    """One thing that costs, and how much it has by a moment."""

    name: Callable[[Cut], str]
    started: datetime
    ended: datetime | None
    usd_by: Callable[[datetime], Decimal]
    is_node: bool


def parts(
    store: Store, fleet: str, cut: Cut, *, since: datetime | None = None, now: datetime, zone: str = "UTC"
) -> list[Part]:
    """The bill from ``since`` (None: all of it) to ``now``, by name; an increment counts where it begins.

    Args:
        zone: whose midnights cut the days.
    """
    found: dict[str, tuple[Decimal, Decimal]] = {}
    for paid in _paid(store, fleet):
        for name, begin, end in _pieces(paid, cut, since, now, ZoneInfo(zone)):
            hours, usd = found.get(name, (Decimal(0), Decimal(0)))
            ran = Decimal((end - begin).total_seconds()) / 3600 if paid.is_node else Decimal(0)
            before = paid.usd_by(begin) if begin > paid.started else Decimal(0)
            found[name] = (hours + ran, usd + max(paid.usd_by(end) - before, Decimal(0)))
    return [Part(name, *found[name]) for name in sorted(found)]


def _pieces(
    paid: _Paid, cut: Cut, since: datetime | None, now: datetime, zone: ZoneInfo
) -> Iterator[tuple[str, datetime, datetime]]:
    begin, end = max(paid.started, since or paid.started), min(paid.ended or now, now)
    if begin >= end:
        return
    if cut is not Cut.DAY:
        yield paid.name(cut), begin, end
        return
    while True:
        day = begin.astimezone(zone).date()
        midnight = datetime.combine(day + timedelta(days=1), datetime.min.time(), tzinfo=zone).astimezone(end.tzinfo)
        yield day.isoformat(), begin, min(midnight, end)
        if midnight >= end:
            return
        begin = midnight


def _paid(store: Store, fleet: str) -> Iterator[_Paid]:
    for rental in store.rentals(fleet, live_only=False):
        yield _of_rental(rental)
    for owed in store.obligations(fleet):
        if owed.kind != INSTANCE and owed.usd_per_hour is not None:
            yield _of_extra(owed, owed.usd_per_hour)


def _of_rental(rental: Rental) -> _Paid:
    names = {Cut.POOL: rental.node.pool, Cut.NODE: str(rental.node), Cut.PROVIDER: rental.provider}
    return _Paid(names.__getitem__, rental.started_at, rental.ended_at, lambda at: cost(rental, at), is_node=True)


def _of_extra(owed: Obligation, rate: Decimal) -> _Paid:
    names = {Cut.POOL: EXTRAS, Cut.NODE: EXTRAS, Cut.PROVIDER: owed.provider}
    return _Paid(
        names.__getitem__,
        owed.opened_at,
        owed.closed_at,
        lambda at: charge(rate, owed.opened_at, max(at, owed.opened_at)),
        is_node=False,
    )
