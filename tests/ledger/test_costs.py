"""The bill."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from gpufleet.ledger.costs import bill
from gpufleet.ledger.errors import BadValue
from gpufleet.ledger.store import Store
from tests.ledger.builders import confirm_gone, instance, rent
from tests.ledger.conftest import Clock


def test_a_running_rental_is_billed_up_to_now(store: Store, clock: Clock) -> None:
    rent(store, usd_per_hour=Decimal(36))
    clock.pass_seconds(10)
    made = bill(store, "f", clock.now)
    assert made.total == Decimal("0.1")
    assert made.usd_per_hour == 36
    assert made.lines[0].ended is None


def test_an_ended_rental_is_billed_up_to_its_end(store: Store, clock: Clock) -> None:
    rent(store, usd_per_hour=Decimal(36))
    clock.pass_seconds(100)
    confirm_gone(store)
    clock.pass_seconds(1000)
    made = bill(store, "f", clock.now)
    assert made.total == 1
    assert made.usd_per_hour == 0


def test_increment_and_minimum_are_the_providers(store: Store, clock: Clock) -> None:
    rent(store, usd_per_hour=Decimal(36), billing_increment_s=60)
    rent(store, "gf-f-1", "i-1", usd_per_hour=Decimal(36), min_rental_s=3600)
    clock.pass_seconds(61)
    assert [line.usd for line in bill(store, "f", clock.now).lines] == [Decimal("1.2"), Decimal(36)]


def test_a_price_that_changes_holds_from_when_it_was_seen(store: Store, clock: Clock) -> None:
    rent(store, usd_per_hour=Decimal(36))
    clock.pass_seconds(100)
    store.update_rental(instance(usd_per_hour=Decimal(72)))
    clock.pass_seconds(100)
    made = bill(store, "f", clock.now)
    assert made.total == 3
    assert made.usd_per_hour == 72


def test_a_price_seen_after_the_end_changes_nothing_before_it(store: Store, clock: Clock) -> None:
    rent(store, usd_per_hour=Decimal(36))
    end = clock.now + timedelta(seconds=50)
    clock.pass_seconds(100)
    store.update_rental(instance(usd_per_hour=Decimal(72), ended_at=end))
    confirm_gone(store)
    assert bill(store, "f", clock.now).total == Decimal("0.5")


def test_ten_thousand_rentals_of_a_tenth_are_exact(store: Store, clock: Clock) -> None:
    rent(store, usd_per_hour=Decimal("0.1"))
    clock.pass_seconds(3600 * 10_000)
    assert bill(store, "f", clock.now).total == 1000


def test_a_clock_that_went_back_never_makes_money(store: Store, clock: Clock) -> None:
    rent(store)
    clock.pass_seconds(-3600)
    confirm_gone(store)
    assert bill(store, "f", clock.now).total == 0


def test_duplicates_and_failures_are_billed_too(store: Store, clock: Clock) -> None:
    rent(store, usd_per_hour=Decimal(36))
    store.record_rental("gf-f-0", instance("i-1"))
    clock.pass_seconds(100)
    assert bill(store, "f", clock.now).total == 2


def test_a_time_without_a_zone_is_refused(store: Store, clock: Clock) -> None:
    with pytest.raises(BadValue):
        bill(store, "f", clock.now.replace(tzinfo=None))


def test_lines_stand_by_start(store: Store, clock: Clock) -> None:
    rent(store, created_at=clock.now)
    rent(store, "gf-f-1", "i-1", created_at=clock.now - timedelta(hours=1))
    assert [line.instance_id for line in bill(store, "f", clock.now).lines] == ["i-1", "i-0"]
