"""A provider's price as USD per node-hour; its unit is declared, never guessed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from gpufleet.providers.rest.description import Price
from gpufleet.providers.rest.expressions import evaluate, number

_HIGHEST = Decimal(1_000_000)
"""USD per node-hour above which a price is taken for a fault."""


@dataclass(frozen=True)
class Quote:
    """What something costs."""

    usd_per_hour: Decimal
    """Whole node."""
    told: str
    """As the provider says it."""


def quote(price: Price, values: Mapping[str, Any], *, gpu_count: int | None) -> Quote | None:
    """The price of one node; None where it is missing, zero, below zero, absurd, or in another currency.

    What has no price that can be trusted cannot be rented; a price is never converted between currencies.
    """
    amount = number(evaluate(price.amount, values))
    if amount is None or amount <= 0 or not _is_usd(price, values):
        return None
    if price.per == "gpu" and not gpu_count:
        return None
    node = amount * (gpu_count if price.per == "gpu" and gpu_count else 1)
    if price.unit == "cents":
        node /= 100
    further = _further(price, values)
    if further is None or node + further > _HIGHEST:
        return None
    unit = "cents" if price.unit == "cents" else "USD"
    return Quote(node + further, f"{amount} {unit} per {'GPU' if price.per == 'gpu' else 'node'}-hour")


def _is_usd(price: Price, values: Mapping[str, Any]) -> bool:
    if price.currency is None:
        return True
    told = evaluate(price.currency, values)
    return isinstance(told, str) and told.strip().upper() in {"USD", "US$", "$"}


def _further(price: Price, values: Mapping[str, Any]) -> Decimal | None:
    if price.plus is None:
        return Decimal(0)
    amount = number(evaluate(price.plus, values))
    return amount if amount is not None and amount >= 0 else None
