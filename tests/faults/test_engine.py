"""Reports about what a tool did with what it knew, on the mock market."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gpufleet.domain.market import OfferQuery
from gpufleet.engine.acquire import Acquirer
from gpufleet.engine.keys import new_key
from gpufleet.engine.machines import Machines
from gpufleet.engine.observe import plan_now
from gpufleet.engine.refresh import refresh
from gpufleet.engine.release import confirm_gone, decide_end, ending
from gpufleet.engine.session import now
from gpufleet.engine.sweep import sweep
from gpufleet.errors import StillBilling
from gpufleet.ledger.errors import LedgerConflict
from gpufleet.ledger.records import IntentState
from gpufleet.ledger.schema import RENTALS
from gpufleet.planning.model import ActionKind
from tests.engine.market import NODE, Odd, assert_even, end_all, place, provider_of, rent_one, take_the_place_of


def test_skypilot_4431_a_fresh_node_that_is_not_listed_yet_stays_on_record(tmp_path: Path) -> None:
    with place(tmp_path) as here, here.session() as session:
        rental = rent_one(session)
        take_the_place_of(session, Odd(provider_of(session), hidden=True, settle_seconds=3600))
        refresh(session)
        assert [r.instance_id for r in session.store.rentals("test")] == [rental.instance_id]
        assert all(a.kind is not ActionKind.CREATE for a in plan_now(session).actions if a.node == NODE)
        session._providers.clear()
        end_all(session)


def test_skypilot_7022_what_was_sent_and_is_not_visible_yet_is_looked_for_by_the_next_run(tmp_path: Path) -> None:
    with place(tmp_path) as here, here.session() as session:
        rental = rent_one(session)
        with session.store._db.write() as connection:
            from gpufleet.ledger.schema import INTENTS, OBLIGATIONS

            connection.execute(OBLIGATIONS.delete())
            connection.execute(RENTALS.delete())
            connection.execute(INTENTS.update().values(state=IntentState.SENT))
        sweep(session)
        assert [r.instance_id for r in session.store.rentals("test")] == [rental.instance_id]
        end_all(session)
        assert here.running() == []


def test_skypilot_509_every_node_is_confirmed_gone_before_down_says_so(tmp_path: Path) -> None:
    with place(tmp_path, {"at": "terminate", "kind": "ignored", "times": 2}) as here, here.session() as session:
        rent_one(session)
        end_all(session)
        assert_even(session, here)


def test_skypilot_511_other_credentials_are_no_evidence(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        with here.session() as session:
            rent_one(session)
        here.fleet["provider"]["directory"] = "second"
        here.write()
        with here.session() as session, pytest.raises(LedgerConflict, match="was rented with"):
            session.account(provider_of(session))
        here.fleet["provider"]["directory"] = "market"
        here.write()
        with here.session() as session:
            end_all(session)


def test_dstack_1551_nothing_is_called_gone_because_we_gave_up(tmp_path: Path) -> None:
    with place(tmp_path, {"at": "inventory", "kind": "transient", "times": 500}) as here, here.session() as session:
        rental = rent_one(session)
        session.read_seconds = 0.1
        decide_end(session, rental, "test")
        with pytest.raises(StillBilling, match=rental.instance_id):
            confirm_gone(session, give_up=0.0)
        assert [o.ref for o in ending(session)] == [rental.instance_id]
        assert session.store.rentals("test")[0].live
    with place(tmp_path) as here, here.session() as session:
        end_all(session)


def test_terraform_23928_the_id_is_on_disk_before_anything_else_happens(tmp_path: Path) -> None:
    with place(tmp_path, {"at": "get", "kind": "transient", "times": 50}) as here:
        with here.session() as session:
            rental = rent_one(session)
        with here.session() as session:
            assert [r.instance_id for r in session.store.rentals("test")] == [rental.instance_id]
            end_all(session)


def test_skypilot_7205_every_attempt_has_a_name_of_its_own() -> None:
    assert len({new_key("fleet", NODE, "ab2c") for _ in range(1000)}) == 1000


def test_skypilot_5946_the_deadline_is_part_of_the_create_itself(tmp_path: Path) -> None:
    with place(tmp_path) as here, here.session() as session:
        from gpufleet.engine.listing import Listing
        from gpufleet.engine.rent import Wanted, rent
        from tests.providers.places import PUBLIC_KEY

        provider = provider_of(session)
        session.account(provider)
        until = now() + timedelta(hours=1)
        wanted = Wanted(NODE, provider.offers(OfferQuery()), None, 100, until, PUBLIC_KEY)
        rental = rent(session, provider, Listing(provider), wanted)
        assert rental.deadline_at == until
        (intent,) = session.store.intents("test")
        assert intent.intent.deadline_at == until
        end_all(session)


def test_dstack_2809_a_node_may_take_four_times_as_long_to_boot_as_its_offer_says(tmp_path: Path) -> None:
    with place(tmp_path) as here, here.session() as session:
        rental = rent_one(session)
        acquirer = Acquirer(session, Machines(session), {})
        slow = replace(session.terms[rental.key], boot_seconds=3600.0)
        session.terms[rental.key] = slow
        scale = provider_of(session).caps.time_scale
        assert acquirer._boot_limit(rental) >= 4 * 3600.0 / scale
        session.terms[rental.key] = replace(slow, boot_seconds=1.0)
        assert acquirer._boot_limit(rental) >= 600.0 / scale
        end_all(session)
