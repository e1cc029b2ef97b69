"""Ending rentals on a market that says yes and does nothing: closed only on evidence, and never for want of trying."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpufleet.domain.nodes import NodeName
from gpufleet.engine import down as down_module
from gpufleet.engine.down import take_down
from gpufleet.engine.observe import plan_now
from gpufleet.engine.refresh import refresh
from gpufleet.engine.release import ask_end, confirm_gone, decide_end, ending
from gpufleet.engine.session import Session
from gpufleet.engine.up import bring_up
from gpufleet.errors import Declined, Interrupted, NodeFailed, StillBilling
from gpufleet.ledger.errors import LedgerConflict
from gpufleet.planning.model import ActionKind
from tests.engine.market import (
    Odd,
    Place,
    assert_even,
    end_all,
    market_options,
    place,
    provider_of,
    rent_one,
    take_the_place_of,
)
from tests.providers.places import eventually, request

NATIVE = NodeName("native", 0)
READS = [
    *[{"at": "inventory", "kind": kind, "times": 2} for kind in ("transient", "partial", "empty", "unknown-state")],
    {"at": "inventory", "kind": "429", "retry_after": 0.01, "times": 2},
    {"at": "get", "kind": "transient", "times": 2},
    {"at": "get", "kind": "unknown-state"},
]


@pytest.mark.report("libreyolo 505", "api-v2 104")
@pytest.mark.parametrize("kind", ["error-500", "429", "ok-but-running", "ignored", "not-yet"])
def test_a_bad_answer_to_terminate_is_followed_by_another_call_until_it_is_gone(tmp_path: Path, kind: str) -> None:
    fault = {"at": "terminate", "kind": kind, "after": 600, "retry_after": 0.01}
    with place(tmp_path, fault, *READS) as here, here.session() as session:
        rent_one(session)
        end_all(session)
        assert ending(session) == []
        assert_even(session, here)


def test_what_is_asked_to_end_at_once_ends_without_being_waited_for(tmp_path: Path) -> None:
    with place(tmp_path) as here, here.session() as session:
        rental = rent_one(session)
        decide_end(session, rental, "test")
        ask_end(session, [rental])
        eventually(lambda: not here.running())
        assert len(ending(session)) == 1


@pytest.mark.report("transformerlab-app 1897")
def test_a_fresh_rental_that_is_not_shown_yet_is_not_believed_gone(tmp_path: Path) -> None:
    with place(tmp_path) as here, here.session() as session:
        rental = rent_one(session)
        odd = Odd(provider_of(session), hidden=True, settle_seconds=60.0)
        take_the_place_of(session, odd)
        refresh(session)
        assert [a.kind for a in plan_now(session).actions if a.node == rental.node] == [ActionKind.UPDATE]
        decide_end(session, rental, "test")
        with pytest.raises(StillBilling, match="1 rental is not confirmed gone"):
            confirm_gone(session, give_up=0.5)
        odd.hidden = False
        confirm_gone(session, give_up=30.0)
        assert_even(session, here)


def test_an_old_rental_that_nobody_shows_any_more_is_gone(tmp_path: Path) -> None:
    with place(tmp_path) as here, here.session() as session:
        rental = rent_one(session)
        take_the_place_of(session, Odd(provider_of(session), hidden=True, settle_seconds=0.0))
        decide_end(session, rental, "test")
        confirm_gone(session, give_up=30.0)
        assert session.store.rentals("test") == []


def test_a_stop_leaves_the_obligations(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        with here.session() as session:
            rent_one(session)
            session.stop.set()
            with pytest.raises(Interrupted):
                take_down(session)
            assert len(ending(session)) == 1
        with here.session() as session:
            take_down(session)
            assert_even(session, here)


def test_credentials_of_another_account_are_never_taken_for_evidence(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        with here.session() as session:
            rent_one(session)
        here.write(provider=market_options(tmp_path, [], directory="another") | {"use": "mock"})
        with here.session() as session, pytest.raises(StillBilling, match="was rented with mock-"):
            take_down(session)
        here.write(provider=here.options | {"use": "mock"})
        with here.session() as session:
            assert len(ending(session)) == 1
            take_down(session)
            assert_even(session, here)


def test_one_answer_for_somebody_else_is_a_slip_and_two_are_an_answer(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        with here.session() as session:
            rent_one(session)
            mine = session.account(provider_of(session))
        for times, believed in ((1, False), (3, True)):  # the market counts those that it has played
            slips = [{"at": "whoami", "kind": "other-account", "times": times}]
            here.write(provider=here.options | {"use": "mock", "faults": slips, "seed": times})
            with here.session() as session:
                if believed:
                    with pytest.raises(LedgerConflict, match="was rented with"):
                        session.account(provider_of(session))
                else:
                    assert session.account(provider_of(session)) == mine
        here.write(provider=here.options | {"use": "mock"})
        with here.session() as session:
            take_down(session)
            assert_even(session, here)


def _unclear(session: Session) -> None:
    """A create call whose answer was lost and that was not looked up."""
    session.stop.wait = lambda _=None: True  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        rent_one(session, offer="h200x8-east")


def test_an_unclear_create_holds_the_account_too(tmp_path: Path) -> None:
    lost = [{"at": "create", "kind": "lost-answer"}, {"at": "inventory", "kind": "lag", "after": 300}]
    with place(tmp_path, *lost) as here:
        with here.session() as session:
            _unclear(session)
        here.write(provider=market_options(tmp_path, [], directory="another") | {"use": "mock"})
        with here.session() as session, pytest.raises(StillBilling, match="1 create calls are unclear and may cost"):
            take_down(session)
        here.write(provider=here.options | {"use": "mock"})
        with here.session() as session:
            take_down(session)
            assert len(here.charges()) == 1
            assert_even(session, here)


def _with_second_provider(here: Place) -> Path:
    """The native node comes from a provider of its own; returns that provider's file."""
    file = here.root / "providers" / "second.yaml"
    file.parent.mkdir()
    file.write_text(yaml.safe_dump({"kind": "mock"}))
    options: dict[str, Any] = {**market_options(here.root, []), "use": "second", "directory": "second"}
    here.fleet["pools"]["native"]["provider"] = options
    here.write()
    return file


def _rent_both(here: Place) -> None:
    with here.session() as session:
        rent_one(session)
        rent_one(session, session.provider(session.fleet.provider_of("native")), node=NATIVE)


def test_a_provider_that_cannot_be_asked_keeps_no_other_from_being_ended(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        file = _with_second_provider(here)
        _rent_both(here)
        text = file.read_text()
        file.unlink()
        with here.session() as session, pytest.raises(StillBilling, match="native/0"):
            take_down(session)
        assert here.running() == []
        file.write_text(text)
        with here.session() as session:
            take_down(session)
            assert session.store.rentals("test") == []


@pytest.mark.report("dstack 2114")
def test_rentals_whose_provider_is_gone_from_the_file_end_with_the_options_they_were_made_with(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        _with_second_provider(here)
        _rent_both(here)
        del here.fleet["pools"]["native"]["provider"]
        here.write()
        with here.session() as session:
            take_down(session)
        assert here.running() == []
        assert [charge.node for charge in here.charges("second")] == ["native/0"]
        assert here.running("second") == []


def test_a_router_that_does_not_stop_keeps_nothing_billing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise NodeFailed("haproxy does not stop")

    monkeypatch.setattr(down_module, "close_front", fails)
    with place(tmp_path) as here, here.session() as session:
        rent_one(session)
        session.paths.router.mkdir(parents=True)
        with pytest.raises(NodeFailed, match="haproxy does not stop"):
            take_down(session)
        assert_even(session, here)


def test_down_does_not_say_that_nothing_is_left_while_something_carries_the_fleets_name(tmp_path: Path) -> None:
    with place(tmp_path) as here, here.session() as session:
        rental = rent_one(session)
        stranger = request(session.terms[rental.key], "gf-test-decode0-abcdefghijkl", "decode/0")
        instance = provider_of(session).create(stranger)
        with pytest.raises(StillBilling, match=instance.instance_id):
            take_down(session)
        assert [charge.instance_id for charge in here.running()] == [instance.instance_id]


def test_a_plan_that_is_no_longer_true_rents_nothing_above_what_was_agreed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GF_TEST_BATCH", "sk-batch")
    with place(tmp_path) as here, here.session() as session:
        refresh(session)
        agreed = plan_now(session)
        session.offers = {pool: [o for o in offers if "west" in o.offer_id] for pool, offers in session.offers.items()}
        with pytest.raises(Declined, match=r"would now cost \$59\.20/h, not \$56\.00/h"):
            bring_up(session, agreed)
        assert here.charges() == []
