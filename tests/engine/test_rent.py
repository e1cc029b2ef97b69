"""Renting on a market that refuses, lies and loses answers: one rental or none, and none that nobody knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpufleet.domain.market import Instance
from gpufleet.engine.down import take_down
from gpufleet.engine.observe import plan_now
from gpufleet.engine.refresh import refresh, strangers
from gpufleet.engine.release import ending
from gpufleet.engine.session import Session
from gpufleet.engine.sweep import sweep
from gpufleet.errors import Interrupted, ProviderRefused
from gpufleet.ledger.records import IntentState, ObligationState
from gpufleet.planning.model import ActionKind
from gpufleet.providers.base import HasExtras
from gpufleet.providers.errors import AuthError, CapacityError, PaymentError, PriceChanged, QuotaError, RateLimited
from tests.engine.market import NODE, Odd, assert_even, end_all, place, provider_of, rent_one
from tests.providers.places import eventually, request


def _fault(kind: str, **more: Any) -> dict[str, Any]:
    return {"at": "create", "kind": kind, **more}


def _states(session: Session) -> list[IntentState]:
    return [record.state for record in session.store.intents("test")]


def test_without_capacity_the_next_offer_is_rented(tmp_path: Path) -> None:
    with place(tmp_path, _fault("capacity")) as here, here.session() as session:
        assert rent_one(session).offer_id == "h200x8-west"
        assert _states(session) == [IntentState.REFUSED, IntentState.CREATED]
        assert len(here.charges()) == 1
        end_all(session)
        assert_even(session, here)


@pytest.mark.report("skypilot 2126")
@pytest.mark.parametrize(
    ("kind", "error", "told"),
    [("quota", QuotaError, "limit of nodes"), ("payment", PaymentError, "balance"), ("auth", AuthError, "account")],
)
def test_what_no_other_offer_helps_against_is_told_at_once(
    tmp_path: Path, kind: str, error: type[ProviderRefused], told: str
) -> None:
    with place(tmp_path, _fault(kind)) as here, here.session() as session:
        with pytest.raises(error, match=told):
            rent_one(session)
        assert _states(session) == [IntentState.REFUSED]
        assert here.charges() == []


def test_too_many_requests_is_waited_for_and_rents_once(tmp_path: Path) -> None:
    with place(tmp_path, _fault("429", times=2, retry_after=0.01)) as here, here.session() as session:
        rental = rent_one(session)
        assert [charge.key for charge in here.charges()] == [rental.key]
        assert _states(session) == [IntentState.REFUSED, IntentState.REFUSED, IntentState.CREATED]


def test_too_many_requests_again_and_again_is_waited_for(tmp_path: Path) -> None:
    with place(tmp_path, _fault("429", times=7, retry_after=0.01)) as here, here.session() as session:
        rental = rent_one(session)
        assert [charge.key for charge in here.charges()] == [rental.key]


def test_a_wait_of_an_hour_is_not_waited_for(tmp_path: Path) -> None:
    with place(tmp_path, _fault("429", retry_after=3600)) as here, here.session() as session:
        with pytest.raises(RateLimited):
            rent_one(session)
        assert here.charges() == []


def test_a_call_that_never_left_is_made_again_under_a_new_key(tmp_path: Path) -> None:
    with place(tmp_path, _fault("not-sent")) as here, here.session() as session:
        rent_one(session)
        assert _states(session) == [IntentState.NOT_SENT, IntentState.CREATED]
        assert len({record.intent.key for record in session.store.intents("test")}) == 2
        assert len(here.charges()) == 1


def test_nothing_is_rented_above_the_limit(tmp_path: Path) -> None:
    with place(tmp_path, _fault("price-change")) as here, here.session() as session:
        with pytest.raises(PriceChanged, match=r"above \$28\.50"):
            rent_one(session, limit=Decimal("28.50"))
        assert here.charges() == []


@pytest.mark.report("dstack 1890")
def test_what_turns_out_dearer_than_agreed_is_ended_at_once(tmp_path: Path) -> None:
    with place(tmp_path) as here, here.session() as session:
        dearer = Odd(provider_of(session), lambda i: replace(i, usd_per_hour=Decimal(99)))
        with pytest.raises(PriceChanged, match=r"it costs \$99\.00/h, above \$28\.00/h"):
            rent_one(session, dearer, offer="h200x8-east")
        assert len(ending(session)) == 1
        eventually(lambda: not here.running())


def test_a_slow_answer_is_awaited(tmp_path: Path) -> None:
    with place(tmp_path, _fault("hang", after=300)) as here, here.session() as session:
        rental = rent_one(session)
        assert [charge.instance_id for charge in here.charges()] == [rental.instance_id]


@pytest.mark.parametrize("kind", ["lost-answer", "error-500-after-create"])
def test_a_lost_answer_is_found_by_its_key(tmp_path: Path, kind: str) -> None:
    with place(tmp_path, _fault(kind)) as here, here.session() as session:
        rental = rent_one(session)
        assert _states(session) == [IntentState.FOUND]
        assert [charge.instance_id for charge in here.charges()] == [rental.instance_id]
        end_all(session)
        assert_even(session, here)


def test_a_lost_answer_is_found_in_a_listing_that_lags(tmp_path: Path) -> None:
    faults = [_fault("lost-answer"), {"at": "inventory", "kind": "lag", "after": 50}]
    with place(tmp_path, *faults) as here, here.session() as session:
        rent_one(session)
        assert len(here.charges()) == 1


def test_where_a_key_is_made_only_once_a_lost_create_is_sent_again_and_not_looked_for(tmp_path: Path) -> None:
    faults = [_fault("lost-answer"), {"at": "inventory", "kind": "lag", "after": 9000}]
    with place(tmp_path, *faults, idempotent_create=True) as here, here.session() as session:
        rental = rent_one(session)
        assert _states(session) == [IntentState.FOUND]
        assert [charge.instance_id for charge in here.charges()] == [rental.instance_id]


def test_a_create_that_made_nothing_is_presumed_absent_and_the_next_offer_rented(tmp_path: Path) -> None:
    with place(tmp_path, _fault("error-500")) as here, here.session() as session:
        assert rent_one(session).offer_id == "h200x8-west"
        assert _states(session) == [IntentState.PRESUMED_ABSENT, IntentState.CREATED]
        assert len(here.charges()) == 1


@pytest.mark.report("skypilot 779")
def test_of_a_create_that_happened_twice_the_second_ends_at_once_and_both_are_billed(tmp_path: Path) -> None:
    with place(tmp_path, _fault("double")) as here, here.session() as session:
        rental = rent_one(session)
        assert len(here.charges()) == 2
        assert [r.duplicate for r in session.store.rentals("test")] == [False, True]
        eventually(lambda: [c.instance_id for c in here.running()] == [rental.instance_id])
        end_all(session)
        assert_even(session, here)


def test_a_second_instance_that_shows_up_later_ends(tmp_path: Path) -> None:
    with place(tmp_path) as here, here.session() as session:
        rental = rent_one(session)
        provider = provider_of(session)
        again = request(session.terms[rental.key], rental.key, str(NODE))
        provider.create(again)
        sweep(session)
        assert [r.duplicate for r in session.store.rentals("test")] == [False, True]
        end_all(session)
        assert_even(session, here)


def test_what_was_presumed_absent_and_shows_up_late_is_planned_away(tmp_path: Path) -> None:
    faults = [_fault("lost-answer"), {"at": "inventory", "kind": "lag", "after": 3000}]
    with place(tmp_path, *faults) as here, here.session() as session:
        rent_one(session)
        assert _states(session) == [IntentState.PRESUMED_ABSENT, IntentState.CREATED]
        eventually(lambda: sweep(session) and len(session.store.rentals("test")) == 2)
        plan = plan_now(session)
        assert [a.reason for a in plan.of(ActionKind.TERMINATE)] == ["another rental stands for this node"]
        end_all(session)
        assert_even(session, here)


def test_what_was_presumed_absent_and_shows_up_after_all_is_gone_is_found_by_another_down(tmp_path: Path) -> None:
    faults = [_fault("lost-answer"), {"at": "inventory", "kind": "lag", "after": 3000}]
    with place(tmp_path, *faults) as here, here.session() as session:
        with pytest.raises(CapacityError):
            rent_one(session, offer="h200x8-east")
        assert session.owing_providers() == []
        provider = provider_of(session)
        eventually(lambda: provider.inventory().instances)
        take_down(session)
        assert_even(session, here)


@pytest.mark.report("skypilot 8004")
def test_a_disk_that_a_refused_create_left_behind_ends(tmp_path: Path) -> None:
    with place(tmp_path, _fault("volume-left"), volumes=True) as here, here.session() as session:
        provider = provider_of(session)
        assert isinstance(provider, HasExtras)
        with pytest.raises(QuotaError):
            rent_one(session)
        assert len(provider.extras()) == 1
        take_down(session)
        assert provider.extras() == []
        assert session.store.open_obligations("test") == []


def test_a_disk_that_its_instance_does_not_tell_of_is_held_with_it(tmp_path: Path) -> None:
    with place(tmp_path, volumes=True) as here, here.session() as session:
        untold = Odd(provider_of(session), lambda i: replace(i, extras=()))
        rental = rent_one(session, untold)
        assert [o.kind for o in session.store.open_obligations("test")] == ["instance"]
        sweep(session)
        (volume,) = [o for o in session.store.open_obligations("test") if o.kind == "volume"]
        assert (volume.state, volume.parent) == (ObligationState.HELD, rental.instance_id)
        end_all(session)
        assert session.store.open_obligations("test") == []
        assert_even(session, here)


def _killed(_: Instance) -> Instance:
    raise KeyboardInterrupt


def test_a_run_killed_in_a_create_is_billed_by_the_offers_terms_when_it_is_found(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        with here.session() as session, pytest.raises(KeyboardInterrupt):
            rent_one(session, Odd(provider_of(session), _killed), offer="h200x8-west")
        with here.session() as session:
            assert _states(session) == [IntentState.SENT]
            sweep(session)
            (rental,) = session.store.rentals("test")
            assert rental.billing_increment_s == 60
            end_all(session)
            assert_even(session, here)


def _stopping(session: Session) -> Callable[[Instance], Instance]:
    def stop(instance: Instance) -> Instance:
        session.stop.set()
        return instance

    return stop


@pytest.mark.report("dstack 138")
def test_the_answer_of_a_create_during_which_the_user_stops_is_stored(tmp_path: Path) -> None:
    with place(tmp_path) as here, here.session() as session:
        rental = rent_one(session, Odd(provider_of(session), _stopping(session)))
        assert [charge.instance_id for charge in here.charges()] == [rental.instance_id]
        assert _states(session) == [IntentState.CREATED]
        with pytest.raises(Interrupted):
            rent_one(session)


def test_a_stop_while_an_unclear_create_is_looked_up_leaves_it_for_the_next_run(tmp_path: Path) -> None:
    faults = [_fault("lost-answer"), {"at": "inventory", "kind": "lag", "after": 1500}]
    with place(tmp_path, *faults) as here:
        with here.session() as session:
            session.stop.wait = lambda _=None: True  # type: ignore[method-assign]
            with pytest.raises(Interrupted):
                rent_one(session, offer="h200x8-east")
            assert _states(session) == [IntentState.AMBIGUOUS]
        with here.session() as session:
            eventually(lambda: sweep(session) and session.store.rentals("test"))
            end_all(session)
            assert_even(session, here)


def test_an_instance_under_our_name_that_no_record_knows_is_told(tmp_path: Path) -> None:
    with place(tmp_path) as here, here.session() as session:
        rental = rent_one(session)
        stranger = request(session.terms[rental.key], "gf-test-decode0-abcdefghijkl", str(NODE))
        provider_of(session).create(stranger)
        assert [i.name for i in strangers(session, refresh(session))] == ["gf-test-decode0-abcdefghijkl"]
