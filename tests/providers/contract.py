"""What every provider must do. A test module subclasses `ProviderContract` and gives the fixture ``place``.

The place must have at least two things to rent, each with a price above zero.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from gpufleet.domain.market import GpuShape, InstanceState, OfferQuery
from gpufleet.providers.base import Provider, TerminateAck
from gpufleet.providers.errors import CapacityError, InstanceNotFound, InvalidRequest, PriceChanged
from tests.providers.places import ABOVE, Place, cheapest, eventually, make, rent, singles


class ProviderContract:
    def test_the_account_stays_the_same(self, place: Place) -> None:
        assert place.open().whoami() == place.open().whoami()
        assert place.open().whoami().account_id

    def test_offers_come_cheapest_first_and_carry_the_providers_name(self, place: Place) -> None:
        offers = place.open().offers(OfferQuery())
        assert [o.usd_per_hour for o in offers] == sorted(o.usd_per_hour for o in offers)
        assert {o.provider for o in offers} == {place.use}
        assert len({o.offer_id for o in offers}) == len(offers)
        assert all(isinstance(o.usd_per_hour, Decimal) for o in offers)

    def test_offers_fit_the_query(self, place: Place) -> None:
        provider = place.open()
        wanted = singles(provider)[-1]
        found = provider.offers(OfferQuery(gpu=wanted.gpu, region=wanted.region, max_usd_per_hour=wanted.usd_per_hour))
        assert wanted in found
        assert {o.gpu for o in found} == {wanted.gpu}
        assert provider.offers(OfferQuery(gpu=GpuShape("NOSUCH", 8))) == []
        assert provider.offers(OfferQuery(max_usd_per_hour=provider.offers(OfferQuery())[0].usd_per_hour - ABOVE)) == []

    def test_a_create_gives_one_instance_that_is_found_by_its_key(self, place: Place) -> None:
        provider = place.open()
        offer = cheapest(provider)
        made = make(provider, offer, "gf-test-0-once")
        assert made.name == "gf-test-0-once"
        assert made.usd_per_hour == offer.usd_per_hour
        assert made.gpu == offer.gpu
        assert made.created_at is not None
        assert made.created_at.tzinfo is not None
        assert made.ended_at is None
        found = eventually(lambda: provider.inventory().named("gf-test-0-once"))
        assert [i.instance_id for i in found] == [made.instance_id]

    def test_the_inventory_names_the_account(self, place: Place) -> None:
        provider = place.open()
        assert provider.inventory().account == provider.whoami().account_id

    def test_an_instance_outlives_the_process_that_made_it(self, place: Place) -> None:
        other = place.start("print(rent(place.open(), 'gf-test-0-other').instance_id)")
        out, err = other.communicate(timeout=60)
        assert other.returncode == 0, err
        assert place.open().get(out.strip()).name == "gf-test-0-other"

    def test_a_running_instance_says_how_it_is_reached(self, place: Place) -> None:
        provider = place.open()
        made = rent(provider)
        instance = eventually(lambda: _if_running(provider.get(made.instance_id)))
        assert instance.ssh is not None
        assert instance.ssh.host
        assert instance.ssh.workdir.startswith("/")

    def test_two_creates_give_two_instances(self, place: Place) -> None:
        provider = place.open()
        first, second = rent(provider, "gf-test-0-a"), rent(provider, "gf-test-1-b", "decode/1")
        assert first.instance_id != second.instance_id
        assert first.host_id is None or first.host_id != second.host_id
        listed = {i.instance_id for i in provider.inventory().instances}
        assert {first.instance_id, second.instance_id} <= listed

    def test_creates_of_two_processes_at_once_do_not_disturb_each_other(self, place: Place) -> None:
        code = """
import time
from gpufleet.providers.errors import CapacityError
provider = place.open()
for offer in singles(provider) * 3:
    try:
        print(make(provider, offer, sys.argv[1]).instance_id)
        break
    except CapacityError:
        continue
"""
        runs = [place.start(code, f"gf-test-{n}-x") for n in range(2)]
        ids = []
        for run in runs:
            out, err = run.communicate(timeout=60)
            assert run.returncode == 0, err
            ids.append(out.strip())
        assert len(set(ids)) == 2
        assert {i.instance_id for i in place.open().inventory().instances} == set(ids)

    def test_creates_of_two_threads_at_once_do_not_disturb_each_other(self, place: Place) -> None:
        provider = place.open()
        offers = singles(provider)
        made: list[str] = []
        threads = [
            threading.Thread(target=lambda n=n: made.append(make(provider, offers[n], f"gf-test-{n}-t").instance_id))
            for n in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {i.instance_id for i in provider.inventory().instances} == set(made)
        assert len(set(made)) == 2

    def test_a_price_above_the_limit_is_refused_and_nothing_is_made(self, place: Place) -> None:
        provider = place.open()
        offer = cheapest(provider)
        with pytest.raises(PriceChanged):
            make(provider, offer, max_usd_per_hour=offer.usd_per_hour - ABOVE)
        assert provider.inventory().instances == ()

    def test_a_disk_that_is_too_large_is_refused_and_nothing_is_made(self, place: Place) -> None:
        provider = place.open()
        with pytest.raises((InvalidRequest, CapacityError)):
            rent(provider, disk_gb=10_000_000)
        assert provider.inventory().instances == ()

    def test_an_offer_that_does_not_exist_is_no_capacity(self, place: Place) -> None:
        provider = place.open()
        offer = cheapest(provider)
        gone = replace(offer, offer_id="no-such-offer", region="no-such", launch=dict.fromkeys(offer.launch, "no-such"))
        with pytest.raises(CapacityError):
            make(provider, gone)
        assert provider.inventory().instances == ()

    def test_what_is_rented_up_is_not_offered(self, place: Place) -> None:
        provider = place.open()
        offer = cheapest(provider)
        for number in range(1000):
            if offer.offer_id not in {o.offer_id for o in provider.offers(OfferQuery())}:
                break
            make(provider, offer, f"gf-test-{number}-s")
        assert offer.stock in {None, number}
        assert offer.offer_id not in {o.offer_id for o in provider.offers(OfferQuery())}
        with pytest.raises(CapacityError):
            make(provider, offer, "gf-test-last-s")

    def test_an_unknown_instance_is_not_found_and_counts_as_terminated(self, place: Place) -> None:
        provider = place.open()
        with pytest.raises(InstanceNotFound):
            provider.get("no-such-instance")
        assert provider.terminate("no-such-instance") is TerminateAck.GONE

    def test_terminate_ends_the_meter_and_may_be_repeated(self, place: Place) -> None:
        provider = place.open()
        made = rent(provider)
        end(provider, made.instance_id)
        provider.terminate(made.instance_id)
        eventually(lambda: _is_gone(place, made.instance_id))
        assert provider.terminate(made.instance_id) is not TerminateAck.NOT_YET
        listed = [i for i in provider.inventory().instances if i.instance_id == made.instance_id]
        assert all(i.state is InstanceState.TERMINATED for i in listed)
        for instance in listed:
            assert instance.ended_at is not None
            assert instance.created_at is not None
            assert instance.ended_at >= instance.created_at

    def test_terminating_one_leaves_the_others(self, place: Place) -> None:
        provider = place.open()
        first, second = rent(provider, "gf-test-0-a"), rent(provider, "gf-test-1-b")
        end(provider, first.instance_id)
        eventually(lambda: _is_gone(place, first.instance_id))
        assert provider.get(second.instance_id).state is not InstanceState.TERMINATED

    def test_what_was_given_back_can_be_rented_again_as_another_instance(self, place: Place) -> None:
        provider = place.open()
        offer = cheapest(provider)
        first = make(provider, offer, "gf-test-0-first")
        end(provider, first.instance_id)
        eventually(lambda: _is_gone(place, first.instance_id))
        second = make(provider, offer, "gf-test-0-second")
        assert second.instance_id != first.instance_id
        assert [i.instance_id for i in provider.inventory().named("gf-test-0-second")] == [second.instance_id]

    def test_a_deadline_in_the_future_is_accepted(self, place: Place) -> None:
        made = rent(place.open(), deadline_at=datetime.now(UTC) + timedelta(hours=1))
        assert place.open().get(made.instance_id).ended_at is None

    def test_the_capabilities_are_sane(self, place: Place) -> None:
        caps = place.open().caps
        assert caps.settle_seconds >= 0
        assert caps.poll_seconds > 0
        assert caps.time_scale >= 1


def end(provider: Provider, instance_id: str) -> None:
    """Ask until the request is taken: some cannot end what is still provisioning, and say so."""

    def ask() -> bool:
        ack = provider.terminate(instance_id)
        if ack is TerminateAck.NOT_YET:
            assert not provider.caps.terminate_while_provisioning
            provider.get(instance_id)
        return ack is not TerminateAck.NOT_YET

    eventually(ask)


def _if_running(instance: object) -> object:
    return instance if getattr(instance, "state", None) is InstanceState.RUNNING else None


def _is_gone(place: Place, instance_id: str) -> bool:
    try:
        return place.open().get(instance_id).state is InstanceState.TERMINATED
    except InstanceNotFound:
        return True
