"""Nothing that costs money is forgotten, and none is believed gone on one look."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gpufleet.ledger.errors import LedgerConflict
from gpufleet.ledger.records import ObligationState
from gpufleet.ledger.store import Store
from tests.ledger.builders import confirm_gone, instance, rent
from tests.ledger.conftest import Clock


def test_deciding_an_end_moves_the_obligation_that_the_rental_has(store: Store, clock: Clock) -> None:
    rent(store)
    decided = store.oblige("mock", "i-0", fleet="f", reason="down")
    assert decided.state is ObligationState.ENDING
    assert decided.ending_since == clock.now
    assert store.open_obligations("f") == [decided]


def test_deciding_it_again_changes_nothing(store: Store, clock: Clock) -> None:
    rent(store)
    first = store.oblige("mock", "i-0", fleet="f", reason="down")
    clock.pass_seconds(60)
    assert store.oblige("mock", "i-0", fleet="f", reason="again") == first


def test_two_looks_in_a_row_close_it_and_end_the_rental_at_the_first(store: Store, clock: Clock) -> None:
    rent(store)
    owed = store.oblige("mock", "i-0", fleet="f", reason="down")
    clock.pass_seconds(10)
    seen = clock.now
    once = store.record_observation(owed.obligation_id, gone=True)
    assert once.state is ObligationState.ENDING
    assert store.rentals("f")[0].live
    clock.pass_seconds(10)
    twice = store.record_observation(owed.obligation_id, gone=True)
    assert twice.state is ObligationState.GONE
    (rental,) = store.rentals("f", live_only=False)
    assert rental.ended_at == seen


@pytest.mark.parametrize("look", [{"gone": False}, {"gone": False, "error": "503"}, {"gone": True, "error": "partial"}])
def test_a_look_that_says_otherwise_or_failed_breaks_the_row(store: Store, look: dict[str, object]) -> None:
    rent(store)
    (owed,) = store.open_obligations("f")
    store.record_observation(owed.obligation_id, gone=True)
    store.record_observation(owed.obligation_id, **look)  # type: ignore[arg-type]
    again = store.record_observation(owed.obligation_id, gone=True)
    assert again.state is not ObligationState.GONE
    assert again.gone_observations == 1


def test_the_providers_own_end_is_believed_over_our_look(store: Store, clock: Clock) -> None:
    rent(store)
    ended = clock.now + timedelta(seconds=7)
    store.update_rental(instance(ended_at=ended))
    clock.pass_seconds(60)
    confirm_gone(store)
    assert store.rentals("f", live_only=False)[0].ended_at == ended


def test_an_end_told_with_the_look_counts_most(store: Store, clock: Clock) -> None:
    rent(store)
    (owed,) = store.open_obligations("f")
    for _ in range(2):
        store.record_observation(owed.obligation_id, gone=True, ended_at=clock.now + timedelta(seconds=2))
    assert store.rentals("f", live_only=False)[0].ended_at == clock.now + timedelta(seconds=2)


@pytest.mark.report("skypilot 1496")
def test_a_closed_one_stays_in_the_record(store: Store) -> None:
    rent(store)
    confirm_gone(store)
    (closed,) = store.obligations("f")
    assert closed.state is ObligationState.GONE
    assert store.record_observation(closed.obligation_id, gone=False) == closed


def test_the_last_error_is_kept_for_people(store: Store) -> None:
    rent(store)
    (owed,) = store.open_obligations("f")
    store.record_observation(owed.obligation_id, gone=False, error="503 Service Unavailable")
    assert store.open_obligations("f")[0].last_error == "503 Service Unavailable"


def test_things_that_are_no_instance_are_owed_too(store: Store) -> None:
    volume = store.oblige("mock", "vol-1", fleet="f", reason="left over", kind="volume")
    for _ in range(2):
        store.record_observation(volume.obligation_id, gone=True)
    assert store.open_obligations() == []


def test_all_fleets_can_be_asked_at_once(store: Store) -> None:
    rent(store)
    rent(store, "gf-g-0", "i-9", fleet="g")
    assert {o.fleet for o in store.open_obligations()} == {"f", "g"}


def test_an_unknown_obligation_is_an_error(store: Store) -> None:
    with pytest.raises(LedgerConflict):
        store.record_observation(12345, gone=True)


def test_an_end_that_was_decided_before_the_rental_was_recorded_stands(store: Store) -> None:
    store.oblige("mock", "i-0", fleet="f", reason="named in the body of an error")
    rent(store)
    assert [o.state for o in store.open_obligations()] == [ObligationState.ENDING]
