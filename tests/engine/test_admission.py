"""Limits that hold over all runs: asked of the ledger right before each create."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from gpufleet.domain.nodes import NodeName
from gpufleet.engine import admission, adopt
from gpufleet.engine.sweep import sweep
from gpufleet.errors import ProviderRefused
from gpufleet.ledger.records import IntentState
from gpufleet.providers.base import Capabilities, Ownership
from gpufleet.providers.errors import AmbiguousOutcome, LimitReached, PriceChanged, Unsupported
from tests.engine.market import NODE, Odd, end_all, place, provider_of, rent_one, take_the_place_of

OTHER = NodeName("native", 0)


def test_no_more_nodes_than_the_budget_allows(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        here.write(budget={"max_nodes": 1})
        with here.session() as session:
            rent_one(session)
            with pytest.raises(LimitReached, match=r"budget\.max_nodes is 1"):
                rent_one(session, node=OTHER)
            assert len(here.charges()) == 1
            end_all(session)


def test_calls_side_by_side_see_each_other(tmp_path: Path) -> None:
    both_checked = threading.Barrier(2)

    class Together(Odd):
        """Both calls have been found allowed before either is written down."""

        def wait_before(self, _operation: str) -> float:
            both_checked.wait(10)
            return 0.0

    with place(tmp_path) as here:
        here.write(budget={"max_nodes": 1})
        with here.session() as session:
            odd = Together(provider_of(session))
            with ThreadPoolExecutor(2) as pool:
                calls = [pool.submit(rent_one, session, odd, node=node) for node in (NODE, OTHER)]  # type: ignore[arg-type]
            (refused,) = [call.exception() for call in calls if call.exception()]
            assert isinstance(refused, LimitReached)
            assert len(here.charges()) == 1
            end_all(session)


def test_what_may_have_been_rented_counts_against_the_price_limit(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        here.write(budget={"max_usd_per_hour": 40})
        with here.session() as session:
            rent_one(session)
            with pytest.raises(LimitReached, match=r"budget\.max_usd_per_hour"):
                rent_one(session, node=OTHER)
            end_all(session)


def test_a_loop_of_failing_runs_stops_renting(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        here.write(budget={"max_creates_per_hour": 2})
        for _ in range(2):
            with here.session() as session:
                rent_one(session)
                end_all(session)
        with here.session() as session, pytest.raises(LimitReached, match="again and again") as refused:
            rent_one(session)
        assert re.search(r"made after \d\d:\d\d UTC", refused.value.message)
        assert len(here.charges()) == 2


def test_a_provider_that_loses_every_answer_is_not_asked_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_UNCLEAR_IN_A_ROW", 2)
    with place(tmp_path, {"at": "create", "kind": "error-500", "times": 9}) as here, here.session() as session:
        with pytest.raises((LimitReached, ProviderRefused)):
            rent_one(session)
        with pytest.raises(LimitReached, match="no clear outcome"):
            rent_one(session, node=OTHER)
        assert [i.state for i in session.store.intents("test")] == [IntentState.PRESUMED_ABSENT] * 2


def test_nothing_is_rented_where_the_description_forbids_it(tmp_path: Path) -> None:
    class Closed(Odd):
        @property
        def caps(self) -> Capabilities:
            return replace(self.real.caps, create_refused="a guess that was not tried")

    with place(tmp_path) as here, here.session() as session:
        with pytest.raises(Unsupported, match="a guess"):
            rent_one(session, Closed(provider_of(session)))  # type: ignore[arg-type]
        assert session.store.intents("test") == []


class Nameless(Odd):
    @property
    def caps(self) -> Capabilities:
        return replace(self.real.caps, ownership=Ownership.NONE, creates_at_once=1)


def test_without_names_an_unclear_create_stops_all_further_ones_and_touches_nothing(tmp_path: Path) -> None:
    with place(tmp_path, {"at": "create", "kind": "lost-answer"}) as here, here.session() as session:
        odd = Nameless(provider_of(session))
        take_the_place_of(session, odd)
        with pytest.raises(AmbiguousOutcome, match="new there since") as unclear:
            rent_one(session, odd)  # type: ignore[arg-type]
        assert f"{NODE}=ID" in str(unclear.value.hint)
        with pytest.raises(LimitReached):
            rent_one(session, odd, node=OTHER)  # type: ignore[arg-type]
        with pytest.raises(AmbiguousOutcome, match="new there since"):
            sweep(session)
        assert [i.state for i in session.store.intents("test")] == [IntentState.AMBIGUOUS]
        (running,) = here.running()
        adopt.take_over(
            session,
            odd,
            adopt.find(session, odd, named={NODE: running.instance_id}, rate=None),  # type: ignore[arg-type]
        )
        sweep(session)
        assert [r.instance_id for r in session.store.rentals("test")] == [running.instance_id]
        end_all(session)


def test_without_names_an_unclear_create_that_made_nothing_is_settled_by_the_next_run(tmp_path: Path) -> None:
    with place(tmp_path, {"at": "create", "kind": "error-500"}) as here, here.session() as session:
        odd = Nameless(provider_of(session))
        take_the_place_of(session, odd)
        with pytest.raises(AmbiguousOutcome, match="nothing new is there yet"):
            rent_one(session, odd)  # type: ignore[arg-type]
        sweep(session)
        assert [i.state for i in session.store.intents("test")] == [IntentState.PRESUMED_ABSENT]
        assert here.charges() == []


def test_without_names_the_id_that_an_error_names_is_ours(tmp_path: Path) -> None:
    with place(tmp_path, {"at": "create", "kind": "id-in-error"}) as here, here.session() as session:
        rental = rent_one(session, Nameless(provider_of(session)))  # type: ignore[arg-type]
        assert [charge.instance_id for charge in here.charges()] == [rental.instance_id]
        end_all(session)


@pytest.mark.report("skypilot 3794")
def test_an_offer_that_has_become_dearer_is_not_sent_for(tmp_path: Path) -> None:
    with place(tmp_path) as here, here.session() as session:
        real = provider_of(session)

        class Dearer(Odd):
            def offers(self, query: object) -> list[object]:
                found = real.offers(query)  # type: ignore[arg-type]
                return [replace(o, usd_per_hour=o.usd_per_hour * 2) for o in found]

        with pytest.raises(PriceChanged, match="above"):
            rent_one(session, Dearer(real), limit=Decimal("50"))  # type: ignore[arg-type]
        assert here.charges() == []
