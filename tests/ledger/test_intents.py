"""A create call is written down first, sent once, and its outcome kept."""

from __future__ import annotations

from decimal import Decimal

import pytest

from gpufleet.errors import GpufleetError
from gpufleet.ledger.errors import BadValue, LedgerConflict
from gpufleet.ledger.records import IntentState
from gpufleet.ledger.store import Store
from tests.ledger.builders import instance, intent, rent
from tests.ledger.conftest import Clock


def state_of(store: Store) -> IntentState:
    (record,) = store.intents("f")
    return record.state


def test_an_intent_comes_back_as_it_was_written(store: Store, clock: Clock) -> None:
    written = intent(deadline_at=clock.now, digest="abc", usd_per_hour=Decimal("41.5000000000000000000000001"))
    store.open_intent(written)
    (record,) = store.open_intents("f")
    assert record.intent == written
    assert record.state is IntentState.PREPARED
    assert record.opened_at == clock.now
    assert record.sent_at is None


@pytest.mark.report("boto3 917")
def test_a_call_is_never_sent_twice(store: Store) -> None:
    store.open_intent(intent())
    store.mark_sent("gf-f-0")
    with pytest.raises(LedgerConflict, match="must not be sent again"):
        store.mark_sent("gf-f-0")


def test_a_key_is_never_used_twice(store: Store) -> None:
    store.open_intent(intent())
    with pytest.raises(LedgerConflict, match="used before"):
        store.open_intent(intent())


def test_a_call_that_was_not_written_down_cannot_be_sent(store: Store) -> None:
    with pytest.raises(LedgerConflict, match="written down"):
        store.mark_sent("gf-unknown")


@pytest.mark.parametrize("outcome", ["refused", "not_sent", "presumed_absent"])
def test_a_settled_call_is_no_longer_open_and_costs_nothing(store: Store, outcome: str) -> None:
    store.open_intent(intent())
    store.mark_sent("gf-f-0")
    assert store.pending_usd_per_hour("f") == Decimal("41.50")
    store.settle_intent("gf-f-0", IntentState(outcome), "no stock")
    assert store.open_intents("f") == []
    assert store.pending_usd_per_hour("f") == 0
    (record,) = store.intents("f", [IntentState(outcome)])
    assert record.error == "no stock"


def test_an_unclear_call_stays_open_until_it_is_found(store: Store) -> None:
    store.open_intent(intent())
    store.mark_sent("gf-f-0")
    store.settle_intent("gf-f-0", IntentState.AMBIGUOUS, "connection reset")
    assert [record.state for record in store.open_intents("f")] == [IntentState.AMBIGUOUS]
    store.record_rental("gf-f-0", instance())
    assert state_of(store) is IntentState.FOUND


def test_one_that_was_given_up_may_still_be_found(store: Store) -> None:
    store.open_intent(intent())
    store.mark_sent("gf-f-0")
    store.settle_intent("gf-f-0", IntentState.PRESUMED_ABSENT)
    store.record_rental("gf-f-0", instance())
    assert state_of(store) is IntentState.FOUND


@pytest.mark.parametrize("outcome", [s for s in IntentState if s not in {IntentState.CREATED, IntentState.FOUND}])
def test_a_call_that_made_a_rental_cannot_be_denied(store: Store, outcome: IntentState) -> None:
    rent(store)
    with pytest.raises(LedgerConflict):
        store.settle_intent("gf-f-0", outcome)
    assert state_of(store) is IntentState.CREATED


def test_settling_a_recorded_rental_again_changes_nothing(store: Store) -> None:
    rent(store)
    store.settle_intent("gf-f-0", IntentState.FOUND)
    assert state_of(store) is IntentState.CREATED


def test_success_without_a_rental_is_refused(store: Store) -> None:
    store.open_intent(intent())
    store.mark_sent("gf-f-0")
    with pytest.raises(LedgerConflict):
        store.settle_intent("gf-f-0", IntentState.CREATED)
    assert state_of(store) is IntentState.SENT


@pytest.mark.parametrize("price", ["-1", "NaN", "Infinity"])
def test_a_price_that_is_no_amount_is_refused(store: Store, price: str) -> None:
    with pytest.raises(BadValue):
        store.open_intent(intent(usd_per_hour=Decimal(price)))
    assert store.intents("f") == []


def test_a_time_without_a_zone_is_refused(store: Store, clock: Clock) -> None:
    with pytest.raises(BadValue, match="no time zone"):
        store.open_intent(intent(deadline_at=clock.now.replace(tzinfo=None)))


def test_fleets_do_not_see_each_other(store: Store) -> None:
    store.open_intent(intent())
    assert store.open_intents("g") == []


def test_a_refused_write_is_an_error_that_users_can_read(store: Store) -> None:
    with pytest.raises(GpufleetError):
        store.record_rental("gf-never", instance())


@pytest.mark.parametrize(
    ("outcome", "doubtful"), [("presumed_absent", True), ("refused", True), ("ambiguous", True), ("not_sent", False)]
)
def test_where_a_call_seems_to_have_made_nothing_is_looked_at_for_a_day(
    store: Store, clock: Clock, outcome: str, *, doubtful: bool
) -> None:
    store.open_intent(intent())
    store.mark_sent("gf-f-0")
    store.settle_intent("gf-f-0", IntentState(outcome))
    clock.pass_seconds(86_000)
    assert store.doubtful_providers("f") == ["mock"] * doubtful
    assert [record.intent.key for record in store.recent_creates("f")] == ["gf-f-0"] * doubtful
    clock.pass_seconds(1_000)
    assert store.doubtful_providers("f") == []
    assert store.recent_creates("f") == []


def test_a_call_that_made_a_rental_leaves_no_doubt_and_may_have_made_more(store: Store) -> None:
    rent(store)
    assert store.doubtful_providers("f") == []
    assert [record.intent.key for record in store.recent_creates("f")] == ["gf-f-0"]
