"""What a schedule will do: the counts of the next days, and what they cost as far as prices are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from gpufleet.engine.session import Session, now
from gpufleet.planning.schedule import changes, open_windows

_DAYS = timedelta(days=7)


@dataclass(frozen=True)
class Coming:
    """From this moment on."""

    at: datetime
    """UTC."""
    windows: tuple[str, ...]
    counts: Mapping[str, int]
    usd_per_hour: Decimal | None
    """None when a pool that has nodes then has no known price."""


def forecast(session: Session) -> list[Coming]:
    """Now, and every change of the next seven days. Asks no provider: prices are those of rentals, newest first."""
    file, at = session.loaded.fleet, now()
    prices = _prices(session)
    rows = [(at, open_windows(file, at), session.fleet.counts)]
    rows += [(change.at, change.windows, change.counts) for change in changes(file, at, at + _DAYS)]
    return [Coming(when, windows, counts, _cost(counts, prices)) for when, windows, counts in rows]


def _prices(session: Session) -> dict[str, Decimal]:
    rentals = session.store.rentals(session.fleet.name, live_only=False)
    return {r.node.pool: r.usd_per_hour for r in sorted(rentals, key=lambda r: r.started_at)}


def _cost(counts: Mapping[str, int], prices: Mapping[str, Decimal]) -> Decimal | None:
    if any(count and pool not in prices for pool, count in counts.items()):
        return None
    return sum((count * prices[pool] for pool, count in counts.items() if count), Decimal(0))
