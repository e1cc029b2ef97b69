"""What a budget allows, given what is spent: go on, warn, or run less. Pure; money is Decimal USD."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum

from gpufleet.domain.money import usd
from gpufleet.domain.nodes import Role
from gpufleet.spec.model import Budget, Fleet

WARN_AT = Decimal("0.80")
NO_NATIVE_AT = Decimal("0.96")
DECODE_AT_BASE_AT = Decimal("0.98")
"""Parts leave a little before a limit is reached, so that what stays can go on for longer and the limit holds."""


class Level(IntEnum):
    """How much of the fleet a budget still pays for; each step includes those before it."""

    FINE = 0
    WARN = 1
    NO_NATIVE = 2
    DECODE_AT_BASE = 3
    NOTHING = 4


@dataclass(frozen=True)
class Spending:
    """How a budget stands."""

    level: Level
    why: str = ""
    """``$81.20 of budget.max_usd_per_day $100.00 are spent (81 %)``; empty while it is fine."""


def spending(budget: Budget, *, total: Decimal, today: Decimal) -> Spending:
    """The worse of the two limits.

    Args:
        total: what the fleet has cost since it was first brought up.
        today: what it has cost since midnight of the schedule's zone, UTC without one.
    """
    return max(_limits(budget, total, today), key=lambda found: found.level, default=Spending(Level.FINE))


def affordable(fleet: Fleet, counts: Mapping[str, int], level: Level) -> dict[str, int]:
    """Counts that a budget at this level still pays for: native nodes go first, then decode nodes above the base."""
    base = fleet.schedule.base if fleet.schedule else {}
    leaving = {Level.NO_NATIVE: {Role.NATIVE}, Level.DECODE_AT_BASE: {Role.NATIVE, Role.DECODE}}.get(level, set())
    if level is Level.NOTHING:
        return dict.fromkeys(counts, 0)
    return {
        pool: min(count, base.get(pool, 0)) if fleet.role_of(pool) in leaving else count
        for pool, count in counts.items()
    }


def _limits(budget: Budget, total: Decimal, today: Decimal) -> Iterator[Spending]:
    pairs = (("max_usd_total", budget.max_usd_total, total), ("max_usd_per_day", budget.max_usd_per_day, today))
    for name, limit, spent in pairs:
        if limit is not None:
            share = spent / limit
            yield Spending(_level(share), f"{usd(spent)} of budget.{name} {usd(limit)} are spent ({share:.0%})")


def _level(share: Decimal) -> Level:
    steps = ((Decimal(1), Level.NOTHING), (DECODE_AT_BASE_AT, Level.DECODE_AT_BASE), (NO_NATIVE_AT, Level.NO_NATIVE))
    return next((level for at, level in (*steps, (WARN_AT, Level.WARN)) if share >= at), Level.FINE)
