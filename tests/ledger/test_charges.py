"""The bill in parts: each cut sums to the whole, in every period."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.domain.nodes import NodeName
from gpufleet.ledger.charges import Cut, parts
from gpufleet.ledger.costs import bill
from gpufleet.ledger.store import Store
from tests.ledger.builders import confirm_gone, rent
from tests.ledger.conftest import Clock

ROUNDING = Decimal("1e-15")
"""USD that 28 digits leave undecided in a sum."""


def spread(store: Store, clock: Clock) -> None:
    """Three rentals over three days, one of which still runs."""
    rent(store, node=NodeName("decode", 0), usd_per_hour=Decimal(44))
    clock.pass_seconds(20 * 3600)
    rent(store, "gf-f-1", "i-1", node=NodeName("native", 0), usd_per_hour=Decimal("28.8"), billing_increment_s=60)
    clock.pass_seconds(30 * 3600 + 7)
    confirm_gone(store)
    clock.pass_seconds(1800)


def test_by_pool_and_node_and_provider(store: Store, clock: Clock) -> None:
    spread(store, clock)
    by_pool = {part.name: part.usd for part in parts(store, "f", Cut.POOL, now=clock.now)}
    assert by_pool.keys() == {"decode", "native"}
    by_node = [part.name for part in parts(store, "f", Cut.NODE, now=clock.now)]
    assert by_node == ["decode/0", "native/0"]
    assert [part.name for part in parts(store, "f", Cut.PROVIDER, now=clock.now)] == ["mock"]


def test_days_are_cut_at_the_zones_midnight(store: Store, clock: Clock) -> None:
    clock.now = datetime(2026, 6, 10, 20, tzinfo=UTC)
    rent(store, usd_per_hour=Decimal(24))
    clock.pass_seconds(4 * 3600)
    found = parts(store, "f", Cut.DAY, now=clock.now, zone="Europe/Berlin")
    assert [(part.name, part.hours, part.usd) for part in found] == [
        ("2026-06-10", Decimal(2), Decimal(48)),
        ("2026-06-11", Decimal(2), Decimal(48)),
    ]


def test_what_ended_before_the_period_is_no_part_of_it(store: Store, clock: Clock) -> None:
    rent(store, usd_per_hour=Decimal(36))
    clock.pass_seconds(100)
    confirm_gone(store)
    clock.pass_seconds(1000)
    assert parts(store, "f", Cut.POOL, since=clock.now - timedelta(seconds=500), now=clock.now) == []


@pytest.mark.parametrize("cut", list(Cut))
def test_the_parts_sum_to_the_whole(store: Store, clock: Clock, cut: Cut) -> None:
    spread(store, clock)
    whole = bill(store, "f", clock.now).total
    assert abs(sum(part.usd for part in parts(store, "f", cut, now=clock.now)) - whole) < ROUNDING


@settings(max_examples=40, deadline=None)
@given(
    rentals=st.lists(
        st.tuples(
            st.integers(0, 200_000),
            st.sampled_from([1, 60, 3600]),
            st.sampled_from([0, 3600]),
            st.decimals(1, 99, places=3),
        ),
        min_size=1,
        max_size=5,
    ),
    cut_at=st.floats(0, 1),
    cut=st.sampled_from(list(Cut)),
)
def test_a_period_cut_in_two_costs_what_the_whole_does(
    rentals: list[tuple[int, int, int, Decimal]], cut_at: float, cut: Cut
) -> None:
    clock = Clock()
    began = clock.now
    with TemporaryDirectory() as folder, Store.open(Path(folder) / "ledger.db", clock=clock) as store:
        for number, (later, step, least, rate) in enumerate(rentals):
            clock.pass_seconds(later)
            terms = {"billing_increment_s": step, "min_rental_s": least, "usd_per_hour": rate}
            rent(store, f"gf-f-{number}", f"i-{number}", node=NodeName("decode", number), **terms)
        clock.pass_seconds(5000)
        middle = began + (clock.now - began) * cut_at
        whole = sum(part.usd for part in parts(store, "f", cut, now=clock.now))
        first = sum(part.usd for part in parts(store, "f", cut, now=middle))
        second = sum(part.usd for part in parts(store, "f", cut, since=middle, now=clock.now))
        assert abs(whole - bill(store, "f", clock.now).total) < ROUNDING
        assert abs(first + second - whole) < ROUNDING
