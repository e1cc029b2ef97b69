"""``cost``: what the fleet has cost, against what it would have cost otherwise, and against what providers say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from gpufleet.engine.listing import read
from gpufleet.engine.session import Session, now
from gpufleet.errors import GpufleetError
from gpufleet.ledger.charges import Cut, Part, parts
from gpufleet.ledger.costs import bill
from gpufleet.ledger.records import Rental
from gpufleet.providers.base import TellsCharges
from gpufleet.spec.model import Fleet

_HOURS_OF_A_MONTH = Decimal(730)


@dataclass(frozen=True)
class Claim:
    """What one provider says of the same rentals."""

    provider: str
    usd: Decimal | None
    """None: it does not tell, or could not be asked."""
    ours_usd: Decimal
    why: str = ""


@dataclass(frozen=True)
class Costs:
    """What was paid in a period, and what it is compared with."""

    fleet: str
    since: datetime | None
    until: datetime
    cut: Cut
    zone: str
    parts: tuple[Part, ...]
    usd: Decimal
    always_on_usd: Decimal | None
    """All nodes of the file, and of its largest window, from the first rental on. None: a pool was never rented."""
    contract_usd: Decimal | None
    """The same nodes at their `usd_per_month`. None: a pool does not say it."""
    claims: tuple[Claim, ...]
    """Of all rentals ever, whatever the period: providers tell no less."""


def costs(session: Session, cut: Cut, since: datetime | None = None) -> Costs:
    """Add up. Asks providers that tell their charges, and says of the others that they do not."""
    fleet, at = session.loaded.fleet, now()
    zone = fleet.schedule.zone if fleet.schedule else "UTC"
    found = parts(session.store, fleet.name, cut, since=since, now=at, zone=zone)
    rentals = session.store.rentals(fleet.name, live_only=False)
    hours = _hours(rentals, since, at)
    most = _most(fleet)
    return Costs(
        fleet=fleet.name,
        since=since,
        until=at,
        cut=cut,
        zone=zone,
        parts=tuple(found),
        usd=sum((part.usd for part in found), Decimal(0)),
        always_on_usd=_always_on(most, rentals, hours),
        contract_usd=_contract(fleet, most, hours),
        claims=tuple(_claim(session, name) for name in sorted({r.provider for r in rentals})),
    )


def _most(fleet: Fleet) -> dict[str, int]:
    """As many nodes of each pool as the file ever asks for."""
    windows = fleet.schedule.windows if fleet.schedule else ()
    return {pool: max(count, *(w.counts.get(pool, 0) for w in windows), 0) for pool, count in fleet.counts.items()}


def _hours(rentals: Sequence[Rental], since: datetime | None, at: datetime) -> Decimal:
    began = min((r.started_at for r in rentals), default=at)
    return Decimal((at - max(began, since or began)).total_seconds()) / 3600


def _always_on(most: Mapping[str, int], rentals: Sequence[Rental], hours: Decimal) -> Decimal | None:
    """At the price of each pool's newest rental."""
    prices = {r.node.pool: r.usd_per_hour for r in sorted(rentals, key=lambda r: r.started_at)}
    if any(count and pool not in prices for pool, count in most.items()):
        return None
    return sum((prices[pool] * count * hours for pool, count in most.items() if count), Decimal(0))


def _contract(fleet: Fleet, most: Mapping[str, int], hours: Decimal) -> Decimal | None:
    total = Decimal(0)
    for pool, count in most.items():
        monthly = fleet.pools[pool].usd_per_month
        if count and monthly is None:
            return None
        total += (monthly or Decimal(0)) * count * hours / _HOURS_OF_A_MONTH
    return total


def _claim(session: Session, name: str) -> Claim:
    """Ours is added up after the provider was asked, so that a meter that runs meanwhile makes no difference."""
    told: Mapping[str, Decimal] | None = None
    why = "it tells no charges"
    try:
        provider = session.provider_named(name)
        if isinstance(provider, TellsCharges):
            told = read(provider, provider.charges)
    except GpufleetError as failure:
        why = failure.message
    lines = [line for line in bill(session.store, session.fleet.name, now()).lines if line.provider == name]
    ours = sum((line.usd for line in lines), Decimal(0))
    if told is None:
        return Claim(name, None, ours, why)
    return Claim(name, sum((told.get(line.instance_id, Decimal(0)) for line in lines), Decimal(0)), ours)
