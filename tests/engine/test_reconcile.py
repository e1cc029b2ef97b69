"""What a lost ledger leaves behind is found, told apart from what others made, and ended or taken over."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from gpufleet.domain.audit import Standing
from gpufleet.domain.market import Inventory
from gpufleet.engine import adopt, reconcile
from gpufleet.engine.session import Session, now
from gpufleet.errors import StillBilling, UsageError
from gpufleet.ledger.records import ObligationState
from tests.engine.market import NODE, Odd, Place, end_all, place, provider_of, rent_one, take_the_place_of


def lose_state(here: Place) -> None:
    shutil.rmtree(here.root / "s")


def standings(session: Session) -> list[Standing]:
    (found,) = reconcile.audit(session).providers
    assert found.failure is None
    return [f.standing for f in found.found]


def forget(session: Session) -> None:
    """The rental's record is lost, the ledger's owner is not."""
    with session.store._db.write() as connection:
        from gpufleet.ledger.schema import INTENTS, OBLIGATIONS, RENTALS

        for table in (OBLIGATIONS, RENTALS, INTENTS):
            connection.execute(table.delete())


def test_what_is_recorded_is_held_and_what_ends_is_ending(tmp_path: Path) -> None:
    with place(tmp_path) as here, here.session() as session:
        rental = rent_one(session)
        assert standings(session) == [Standing.HELD]
        session.store.oblige("mock", rental.instance_id, fleet="test", reason="test")
        assert standings(session) == [Standing.ENDING]
        end_all(session)
        assert standings(session) == []


@pytest.mark.report("skypilot 6051")
def test_an_orphan_is_ended_once_it_is_old_enough(tmp_path: Path) -> None:
    with place(tmp_path) as here, here.session() as session:
        rent_one(session)
        forget(session)
        assert standings(session) == [Standing.ORPHAN]
        odd = Odd(provider_of(session), settle_seconds=3600)
        take_the_place_of(session, odd)
        with pytest.raises(StillBilling, match="too young"):
            reconcile.end_orphans(session, reconcile.audit(session))
        assert len(here.running()) == 1
        odd.settle_seconds = 0.0
        reconcile.end_orphans(session, reconcile.audit(session))
        assert here.running() == []
        assert reconcile.audit(session).orphans == ()
        assert {o.state for o in session.store.obligations("test")} == {ObligationState.GONE}


def test_what_another_ledger_made_is_told_and_left_alone_unless_named(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        with here.session() as session:
            rent_one(session)
            owner = session.store.owner_id()
        lose_state(here)
        with here.session() as session:
            take_the_place_of(session, Odd(provider_of(session), settle_seconds=0.0))
            found = reconcile.audit(session)
            assert standings(session) == [Standing.FOREIGN]
            reconcile.end_orphans(session, found)
            assert len(here.running()) == 1
            reconcile.end_orphans(session, found, owners=[owner])
            assert here.running() == []


@pytest.mark.report("skypilot 10517")
def test_a_listing_that_lies_empty_is_no_listing(tmp_path: Path) -> None:
    with place(tmp_path) as here, here.session() as session:
        rent_one(session)

        class Empty(Odd):
            def inventory(self) -> Inventory:
                return Inventory(self.real.inventory().account)

        take_the_place_of(session, Empty(provider_of(session)))
        (found,) = reconcile.audit(session).providers
        assert "lists nothing, and has" in str(found.failure)
        session._providers.clear()
        end_all(session)


@pytest.mark.report("skypilot 7318")
def test_a_node_that_vanished_is_told_as_lost(tmp_path: Path) -> None:
    with place(tmp_path) as here, here.session() as session:
        rent_one(session)
        take_the_place_of(session, Odd(provider_of(session), hidden=True))
        (found,) = reconcile.audit(session).providers
        assert found.lost == (NODE,)
        session._providers.clear()
        end_all(session)


@pytest.mark.report("skypilot 4313")
def test_a_lost_fleet_is_adopted_by_its_keys_and_ends_like_any_other(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        with here.session() as session:
            lost = rent_one(session)
        lose_state(here)
        with here.session() as session:
            provider = provider_of(session)
            found = adopt.find(session, provider, named={}, rate=None)
            assert [(one.node, one.instance.instance_id) for one in found] == [(NODE, lost.instance_id)]
            adopt.take_over(session, provider, found)
            (rental,) = session.store.rentals("test")
            assert (rental.node, rental.key, rental.usd_per_hour) == (NODE, lost.key, lost.usd_per_hour)
            assert rental.started_at == lost.started_at
            assert adopt.find(session, provider, named={}, rate=None) == []
            end_all(session)
        assert here.running() == []


def test_two_instances_for_one_node_must_be_chosen_from(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        for _ in range(2):
            with here.session() as session:
                rent_one(session)
            lose_state(here)
        with here.session() as session:
            provider = provider_of(session)
            with pytest.raises(UsageError, match="several instances may be prefill/0") as refusal:
                adopt.find(session, provider, named={}, rate=None)
            assert "prefill/0=" in str(refusal.value.hint)
            first, second = provider.inventory().instances
            found = adopt.find(session, provider, named={NODE: second.instance_id}, rate=None)
            assert [one.instance.instance_id for one in found] == [second.instance_id]
            adopt.take_over(session, provider, found)
            end_all(session)
            assert [c.instance_id for c in here.running()] == [first.instance_id]


def test_what_does_not_exist_or_is_rented_already_cannot_be_adopted(tmp_path: Path) -> None:
    with place(tmp_path) as here, here.session() as session:
        provider = provider_of(session)
        with pytest.raises(UsageError, match="has no instance i-none"):
            adopt.find(session, provider, named={NODE: "i-none"}, rate=None)
        rental = rent_one(session)
        with pytest.raises(UsageError, match="is rented already"):
            adopt.find(session, provider, named={NODE: rental.instance_id}, rate=None)
        end_all(session)


@pytest.mark.report("skypilot 5946", "dagu 1180")
def test_reap_ends_what_is_past_its_deadline_with_the_file_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpufleet.engine.reap import reap

    monkeypatch.setenv("GPUFLEET_STATE", str(tmp_path / "s"))
    with place(tmp_path) as here:
        with here.session() as session:
            rental = rent_one(session)
            assert reap() == [type(reap()[0])("test")]
            with session.store._db.write() as connection:
                from gpufleet.ledger.schema import RENTALS

                connection.execute(RENTALS.update().values(deadline_at=now() - timedelta(seconds=1)))
        here.file.unlink()
        (done,) = reap()
        assert done.ended == (str(NODE),)
        assert done.failure is None
        assert here.running() == []
        assert reap() == []
        assert [c.instance_id for c in here.charges()] == [rental.instance_id]


@pytest.mark.report("phpvms 2228")
def test_reap_leaves_a_fleet_alone_that_another_run_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpufleet.engine.reap import reap
    from gpufleet.ledger.lock import fleet_lock

    monkeypatch.setenv("GPUFLEET_STATE", str(tmp_path / "s"))
    with place(tmp_path) as here, here.session() as session:
        rent_one(session)
        with fleet_lock(session.ledger, "test", command="up"):
            (left,) = reap()
        assert left.busy
        assert len(here.running()) == 1
        end_all(session)
