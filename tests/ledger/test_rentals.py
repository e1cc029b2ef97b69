"""What a provider created is kept from the first moment, whatever else it says."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

import pytest

from gpufleet.domain.market import GpuShape, InstanceState
from gpufleet.domain.nodes import NodeName
from gpufleet.domain.status import Serving
from gpufleet.ledger.errors import LedgerConflict
from gpufleet.ledger.records import ObligationState
from gpufleet.ledger.store import Store
from tests.ledger.builders import B200, ENDPOINT, confirm_gone, instance, intent, rent
from tests.ledger.conftest import Clock


def test_a_rental_has_the_terms_of_its_intent_until_the_provider_says_more(store: Store, clock: Clock) -> None:
    rent(store, billing_increment_s=60, min_rental_s=3600)
    (rental,) = store.rentals("f")
    assert rental.node == NodeName("decode", 0)
    assert rental.usd_per_hour == Decimal("41.50")
    assert (rental.gpu, rental.region, rental.account) == (B200, "east", "acct")
    assert (rental.billing_increment_s, rental.min_rental_s) == (60, 3600)
    assert rental.started_at == clock.now
    assert rental.serving is Serving.STARTING
    assert rental.live


def test_the_rental_its_intent_and_its_obligation_are_one_write(store: Store) -> None:
    rent(store)
    (obligation,) = store.open_obligations("f")
    assert obligation.state is ObligationState.HELD
    assert (obligation.provider, obligation.ref) == ("mock", "i-0")
    assert store.open_intents("f") == []


def test_recording_the_same_instance_again_only_updates_it(store: Store) -> None:
    rent(store)
    again = store.record_rental("gf-f-0", instance(state=InstanceState.RUNNING))
    assert again.state is InstanceState.RUNNING
    assert not again.duplicate
    assert len(store.rentals("f")) == len(store.open_obligations("f")) == 1


def test_a_second_instance_for_one_key_is_kept_to_be_ended(store: Store) -> None:
    rent(store)
    second = store.record_rental("gf-f-0", instance("i-1"))
    assert second.duplicate
    states = {o.ref: o.state for o in store.open_obligations("f")}
    assert states == {"i-0": ObligationState.HELD, "i-1": ObligationState.ENDING}


def test_an_instance_of_another_key_is_not_taken_over(store: Store) -> None:
    rent(store)
    store.open_intent(intent("gf-f-1"))
    with pytest.raises(LedgerConflict, match="belongs to gf-f-0"):
        store.record_rental("gf-f-1", instance(key="gf-f-1"))


def test_an_id_may_come_back_once_it_is_gone(store: Store) -> None:
    rent(store)
    confirm_gone(store)
    rent(store, "gf-f-1")
    assert [(r.key, r.live) for r in store.rentals("f", live_only=False)] == [("gf-f-0", False), ("gf-f-1", True)]
    assert [r.key for r in store.rentals("f")] == ["gf-f-1"]


def test_what_a_provider_leaves_out_later_is_kept(store: Store) -> None:
    rent(store, ssh=ENDPOINT, private_ip="10.0.0.1", gpu=GpuShape("B200", 7), region="west", host_id="h-9")
    store.update_rental(instance(state=InstanceState.RUNNING))
    (rental,) = store.rentals("f")
    assert rental.ssh == ENDPOINT
    assert (rental.private_ip, rental.region, rental.host_id) == ("10.0.0.1", "west", "h-9")
    assert rental.gpu == GpuShape("B200", 7)
    assert rental.state is InstanceState.RUNNING


def test_a_pinned_host_key_is_not_replaced_by_what_the_provider_says(store: Store) -> None:
    rent(store, ssh=replace(ENDPOINT, host_key=None))
    store.pin_host_key("mock", "i-0", "ssh-ed25519 FIRST")
    store.update_rental(instance(ssh=replace(ENDPOINT, host_key="ssh-ed25519 OTHER")))
    (rental,) = store.rentals("f")
    assert rental.ssh is not None
    assert rental.ssh.host_key == "ssh-ed25519 FIRST"


def test_another_host_key_cannot_be_pinned(store: Store) -> None:
    rent(store, ssh=ENDPOINT)
    store.pin_host_key("mock", "i-0", "ssh-ed25519 AAAA")
    with pytest.raises(LedgerConflict, match="another host key"):
        store.pin_host_key("mock", "i-0", "ssh-ed25519 OTHER")


def test_nonsense_beside_a_rental_never_loses_the_rental(store: Store, clock: Clock) -> None:
    naive = datetime(2026, 1, 1)
    rental = rent(store, usd_per_hour=Decimal(40), created_at=naive, ended_at=naive)
    assert rental.started_at == clock.now
    for price in ("NaN", "-3", "Infinity"):
        store.update_rental(instance(usd_per_hour=Decimal(price)))
    (kept,) = store.rentals("f")
    assert kept.usd_per_hour == 40


def test_serving_settings_and_fingerprint_are_kept(store: Store) -> None:
    rent(store)
    store.set_serving("mock", "i-0", Serving.READY, settings={"model": "glm"}, note="")
    store.set_fingerprint("mock", "i-0", {"driver": "595"})
    store.set_serving("mock", "i-0", Serving.SICK, note="health check fails")
    (rental,) = store.rentals("f")
    assert rental.settings == {"model": "glm"}
    assert rental.fingerprint == {"driver": "595"}
    assert (rental.serving, rental.note) == (Serving.SICK, "health check fails")


def test_an_instance_nobody_recorded_is_not_updated(store: Store) -> None:
    with pytest.raises(LedgerConflict, match="no record"):
        store.update_rental(instance("i-foreign"))


def test_one_that_comes_back_to_life_is_owed_again(store: Store) -> None:
    rent(store)
    confirm_gone(store)
    assert store.rentals("f") == []
    store.update_rental(instance(state=InstanceState.RUNNING))
    (rental,) = store.rentals("f")
    assert rental.live
    assert [o.state for o in store.open_obligations("f")] == [ObligationState.ENDING]


def test_one_that_is_gone_and_reported_gone_stays_gone(store: Store) -> None:
    rent(store)
    confirm_gone(store)
    store.update_rental(instance(state=InstanceState.TERMINATED))
    assert store.rentals("f") == []
    assert store.open_obligations("f") == []


def test_the_start_is_the_providers_once_it_is_known(store: Store, clock: Clock) -> None:
    rent(store)
    created = clock.now + timedelta(seconds=3)
    store.update_rental(instance(created_at=created))
    (rental,) = store.rentals("f")
    assert rental.started_at == created
    assert rental.rates[0].since == created


def test_rentals_are_found_by_their_id(store: Store) -> None:
    rental = rent(store)
    assert store.rental("mock", "i-0") == rental
    assert store.rental("mock", "i-1") is None
