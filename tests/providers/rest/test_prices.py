"""A price is USD per node-hour, or there is none: no unit is ever guessed."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.providers.rest.description import Price
from gpufleet.providers.rest.prices import quote

AMOUNTS = st.decimals(min_value="0.01", max_value="9999", places=4)
COUNTS = st.integers(1, 16)


def price(**values: Any) -> Price:
    return Price(**{"amount": "item.price", "per": "node", "unit": "usd", **values})


def of(shape: Price, value: Any, *, count: int | None = 8, **more: Any) -> Decimal | None:
    found = quote(shape, {"item": {"price": value, **more}}, gpu_count=count)
    return found.usd_per_hour if found else None


@given(AMOUNTS, COUNTS)
def test_however_a_price_is_told_the_node_costs_the_same(node: Decimal, count: int) -> None:
    told = [
        of(price(), node, count=count),
        of(price(), str(node), count=count),
        of(price(unit="cents"), node * 100, count=count),
        of(price(per="gpu"), node / count, count=count),
        of(price(per="gpu", unit="cents"), node * 100 / count, count=count),
    ]
    for found in told:
        assert found is not None
        assert abs(found - node) < Decimal("1e-20")


@pytest.mark.report("skypilot 4914")
@given(AMOUNTS, COUNTS.filter(lambda n: n > 1))
def test_per_gpu_and_per_node_are_never_the_same(amount: Decimal, count: int) -> None:
    assert of(price(per="gpu"), amount, count=count) == amount * count
    assert of(price(per="node"), amount, count=count) == amount


@given(AMOUNTS)
def test_the_providers_own_figure_and_unit_are_kept(amount: Decimal) -> None:
    found = quote(price(per="gpu", unit="cents"), {"item": {"price": amount}}, gpu_count=8)
    assert found is not None
    assert found.told == f"{amount} cents per GPU-hour"


@pytest.mark.parametrize("value", [None, "", "free", "1,50", "NaN", "Infinity", 0, -1, "0", True, [], {}, 1e9])
def test_what_is_no_price_cannot_be_rented(value: Any) -> None:
    assert of(price(), value) is None


@pytest.mark.parametrize(
    ("currency", "usable"), [("USD", True), ("usd", True), ("EUR", False), (None, False), (1, False)]
)
def test_another_currency_is_never_converted(currency: Any, usable: bool) -> None:
    found = of(price(currency="item.currency"), 10, currency=currency)
    assert found == (Decimal(10) if usable else None)


def test_a_price_per_gpu_without_a_count_of_gpus_is_none() -> None:
    assert of(price(per="gpu"), 5, count=None) is None
    assert of(price(per="gpu"), 5, count=0) is None


def test_disk_and_address_are_added_and_an_unknown_part_makes_the_whole_unknown() -> None:
    shape = price(plus="divide(times(item.disk, `100`), `720`)")
    assert of(shape, 10, disk=Decimal("0.72")) == Decimal("10.1")
    assert of(shape, 10, disk=None) is None
