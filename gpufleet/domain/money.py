"""Money is Decimal USD; this is how it is rounded and shown."""

from __future__ import annotations

from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal

CENT = Decimal("0.01")
_SECONDS_PER_HOUR = Decimal(3600)


def usd(amount: Decimal) -> str:
    """``$1,234.50``; rounds half up to the cent."""
    return f"${amount.quantize(CENT, ROUND_HALF_UP):,}"


def usd_per_hour(amount: Decimal | None) -> str:
    """``$41.50/h``, or ``?/h`` when the price is unknown (unknown is shown, never taken for zero)."""
    return "?/h" if amount is None else f"{usd(amount)}/h"


def charge(rate: Decimal, started: datetime, ended: datetime, *, increment_s: int = 1, minimum_s: int = 0) -> Decimal:
    """What a rental costs: ``rate`` USD per hour from ``started`` to ``ended``.

    The interval is rounded up to the provider's billing increment and minimum, both in seconds. Not rounded to cents.
    """
    micros = max(0, round((ended - started).total_seconds() * 1_000_000))
    step = max(1, increment_s) * 1_000_000
    billed = max(-(-micros // step) * step, minimum_s * 1_000_000)
    return rate * Decimal(billed) / 1_000_000 / _SECONDS_PER_HOUR
