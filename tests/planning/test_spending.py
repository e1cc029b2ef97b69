from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.planning.spending import Level, affordable, spending
from gpufleet.spec.model import Budget
from tests.planning.builders import fleet

DAY = Budget(max_usd_per_day=Decimal(100), max_usd_total=Decimal(1000))


@pytest.mark.parametrize(
    ("total", "today", "level"),
    [
        ("0", "79.99", Level.FINE),
        ("0", "80", Level.WARN),
        ("0", "96", Level.NO_NATIVE),
        ("0", "98", Level.DECODE_AT_BASE),
        ("0", "100", Level.NOTHING),
        ("800", "0", Level.WARN),
        ("1000", "0", Level.NOTHING),
        ("800", "97", Level.NO_NATIVE),
    ],
)
def test_the_worse_of_both_limits_decides(total: str, today: str, level: Level) -> None:
    assert spending(DAY, total=Decimal(total), today=Decimal(today)).level is level


def test_it_says_what_is_spent_of_which_limit() -> None:
    found = spending(DAY, total=Decimal(10), today=Decimal("81.2"))
    assert found.why == "$81.20 of budget.max_usd_per_day $100.00 are spent (81%)"


def test_without_limits_everything_is_fine() -> None:
    assert spending(Budget(), total=Decimal(10**6), today=Decimal(10**6)).level is Level.FINE


def test_native_nodes_go_first_then_decode_nodes_above_the_base() -> None:
    spec = fleet(
        4, 4, 2, schedule={"zone": "UTC", "base": {"decode": 1}, "windows": [_always("decode", 4)]}
    )  # fmt: skip
    counts = spec.counts
    assert affordable(spec, counts, Level.WARN) == counts
    assert affordable(spec, counts, Level.NO_NATIVE) == {"prefill": 4, "decode": 4, "native": 0}
    assert affordable(spec, counts, Level.DECODE_AT_BASE) == {"prefill": 4, "decode": 1, "native": 0}
    assert affordable(spec, counts, Level.NOTHING) == {"prefill": 0, "decode": 0, "native": 0}


def _always(pool: str, count: int) -> dict[str, object]:
    return {"name": "always", "from": "00:00", "to": "24:00", "counts": {pool: count}}


@given(spent=st.decimals(0, 2000, places=2), more=st.decimals(0, 500, places=2))
def test_spending_more_never_pays_for_more(spent: Decimal, more: Decimal) -> None:
    spec = fleet(4, 4, 2)
    levels = [spending(DAY, total=amount, today=Decimal(0)).level for amount in (spent, spent + more)]
    before, after = (affordable(spec, spec.counts, level) for level in levels)
    assert all(after[pool] <= before[pool] for pool in before)
