"""What a mock market may have beside instances, and how it can lie about accounts, listings and prices."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpufleet.domain.market import ExtraKind, InstanceState, OfferQuery
from gpufleet.domain.nodes import NodeName
from gpufleet.providers import errors
from gpufleet.providers.base import (
    Cluster,
    ClusterRequest,
    HasExtras,
    InstallsKeys,
    Ownership,
    Provider,
    RentsClusters,
    TerminateAck,
)
from gpufleet.providers.mock import billing, control
from tests.providers.places import PUBLIC_KEY, Place, cheapest, eventually, in_state, make, market_of, rent, request

State = InstanceState
NODES = tuple(NodeName("prefill", index) for index in range(3))


def faulty(place: Place, at: str, kind: str, **more: object) -> Place:
    return place.with_options(faults=[{"at": at, "kind": kind, **more}])


def test_a_plain_market_has_none_of_the_abilities(mock: Place) -> None:
    provider = mock.open()
    assert not isinstance(provider, HasExtras | InstallsKeys | RentsClusters)
    assert all(offer.cluster is None for offer in provider.offers(OfferQuery()))


class TestVolumes:
    @pytest.fixture
    def place(self, mock: Place) -> Place:
        return mock.with_options(volumes=True)

    def test_an_instance_is_made_with_a_disk_that_carries_its_key(self, place: Place) -> None:
        provider = place.open()
        made = rent(provider)
        (volume,) = made.extras
        assert (volume.kind, volume.name) == (ExtraKind.VOLUME, "gf-test-0-a")
        assert volume.usd_per_hour
        assert provider.get(made.instance_id).extras == (volume,)
        assert provider.inventory().instances[0].extras == (volume,)
        assert extras_of(provider) == [volume]

    def test_it_outlives_the_instance_and_bills_until_it_is_deleted(self, place: Place) -> None:
        provider = place.open()
        made = rent(provider)
        assert isinstance(provider, HasExtras)
        (volume,) = made.extras
        assert provider.delete_extra(ExtraKind.VOLUME, volume.ref) is TerminateAck.NOT_YET
        provider.terminate(made.instance_id)
        in_state(provider, made.instance_id, State.TERMINATED)
        assert [charge.ended for charge in billing.volumes(market_of(place))] == [None]
        assert provider.delete_extra(ExtraKind.VOLUME, volume.ref) is TerminateAck.REQUESTED
        assert provider.delete_extra(ExtraKind.VOLUME, volume.ref) is TerminateAck.GONE
        assert extras_of(provider) == []
        assert provider.get(made.instance_id).extras == ()
        (charge,) = billing.volumes(market_of(place))
        assert charge.ended is not None
        assert charge.usd > 0

    def test_a_refused_create_may_leave_one(self, place: Place) -> None:
        provider = faulty(place, "create", "volume-left").open()
        with pytest.raises(errors.QuotaError):
            rent(provider)
        assert provider.inventory().instances == ()
        assert [extra.name for extra in extras_of(provider)] == ["gf-test-0-a"]

    @pytest.mark.parametrize(
        ("kind", "error"),
        [("429", errors.RateLimited), ("transient", errors.Transient), ("partial", errors.ProtocolError)],
    )
    def test_their_listing_fails_like_others(
        self, place: Place, kind: str, error: type[errors.ProviderRefused]
    ) -> None:
        provider = faulty(place, "extras", kind).open()
        with pytest.raises(error):
            extras_of(provider)
        assert extras_of(provider) == []

    def test_a_delete_may_be_taken_and_forgotten(self, place: Place) -> None:
        provider = faulty(place, "delete", "ignored").open()
        made = rent(provider)
        provider.terminate(made.instance_id)
        in_state(provider, made.instance_id, State.TERMINATED)
        assert isinstance(provider, HasExtras)
        (volume,) = made.extras
        assert provider.delete_extra(ExtraKind.VOLUME, volume.ref) is TerminateAck.REQUESTED
        assert extras_of(provider) == [volume]
        provider.delete_extra(ExtraKind.VOLUME, volume.ref)
        assert extras_of(provider) == []


class TestKeys:
    @pytest.fixture
    def place(self, mock: Place) -> Place:
        return mock.with_options(ssh_keys=True)

    def test_nothing_is_made_with_a_key_that_was_not_uploaded(self, place: Place) -> None:
        provider = place.open()
        with pytest.raises(errors.InvalidRequest):
            provider.create(request(cheapest(provider)))
        make(provider, cheapest(provider))

    def test_a_key_is_uploaded_once_and_listed_until_it_is_deleted(self, place: Place) -> None:
        provider = place.open()
        assert isinstance(provider, InstallsKeys)
        ref = provider.ensure_ssh_key("gf-test", PUBLIC_KEY)
        assert provider.ensure_ssh_key("another-name", PUBLIC_KEY) == ref
        assert billing.keys(market_of(place)) == ["gf-test"]
        assert isinstance(provider, HasExtras)
        provider.delete_extra(ExtraKind.SSH_KEY, ref)
        assert provider.delete_extra(ExtraKind.SSH_KEY, ref) is TerminateAck.GONE
        assert billing.keys(market_of(place)) == []

    def test_an_upload_whose_answer_is_lost_is_found_by_the_next(self, place: Place) -> None:
        provider = faulty(place, "keys", "lost-answer").open()
        assert isinstance(provider, InstallsKeys)
        with pytest.raises(errors.Transient):
            provider.ensure_ssh_key("gf-test", PUBLIC_KEY)
        provider.ensure_ssh_key("gf-test", PUBLIC_KEY)
        assert billing.keys(market_of(place)) == ["gf-test"]


class TestClusters:
    @pytest.fixture
    def place(self, mock: Place) -> Place:
        return mock.with_options(clusters=True, volumes=True)

    def test_members_appear_one_after_the_other_with_their_ranks(self, place: Place) -> None:
        provider = place.with_options(time_scale=100).open()
        made = rent_cluster(provider)
        assert made.state is State.PROVISIONING
        assert len(made.members) < len(NODES)
        seen: list[int] = []

        def whole() -> bool:
            members = provider.inventory().instances
            assert all(m.cluster_id == made.cluster_id for m in members)
            seen.append(len(members))
            return [m.rank for m in members] == [0, 1, 2]

        eventually(whole)
        assert seen == sorted(seen)
        assert {m.name for m in clusters_of(provider)[0].members} == {"gf-test-0-c"}

    def test_a_member_does_not_end_alone(self, place: Place) -> None:
        provider = place.open()
        made = rent_cluster(provider)
        member = eventually(lambda: provider.inventory().instances)[0]
        with pytest.raises(errors.ConflictError):
            provider.terminate(member.instance_id)
        assert isinstance(provider, RentsClusters)
        assert provider.delete_cluster(made.cluster_id) is TerminateAck.REQUESTED
        eventually(lambda: not running(place))
        eventually(lambda: provider.cluster(made.cluster_id).state is State.TERMINATED)
        assert provider.delete_cluster(made.cluster_id) is TerminateAck.GONE

    def test_its_shared_disk_goes_after_all_members(self, place: Place) -> None:
        provider = place.with_options(terminating_seconds=3000).open()
        made = rent_cluster(provider)
        (volume,) = made.extras
        assert isinstance(provider, RentsClusters)
        assert isinstance(provider, HasExtras)
        provider.delete_cluster(made.cluster_id)
        assert provider.delete_extra(ExtraKind.VOLUME, volume.ref) is TerminateAck.NOT_YET
        eventually(lambda: provider.delete_extra(ExtraKind.VOLUME, volume.ref) is TerminateAck.GONE)

    def test_it_comes_whole_or_not_at_all(self, place: Place) -> None:
        provider = place.with_options(stock={"h200x8-fabric": 2}).open()
        with pytest.raises(errors.CapacityError):
            rent_cluster(provider)
        assert provider.inventory().instances == ()
        assert clusters_of(provider) == []
        assert billing.volumes(market_of(place)) == []
        assert control.running(market_of(place)) == []

    def test_a_cluster_offer_is_no_single_node_and_the_reverse(self, place: Place) -> None:
        provider = place.open()
        offers = {offer.offer_id: offer for offer in provider.offers(OfferQuery())}
        with pytest.raises(errors.InvalidRequest):
            provider.create(request(offers["h200x8-fabric"]))
        assert isinstance(provider, RentsClusters)
        with pytest.raises(errors.InvalidRequest):
            provider.create_cluster(cluster_request(offers["h200x8-east"]))
        with pytest.raises(errors.InvalidRequest):
            provider.create_cluster(cluster_request(offers["h200x8-fabric"], nodes=NODES[:1]))

    @pytest.mark.parametrize("kind", ["lost-answer", "error-500-after-create"])
    def test_a_lost_answer_is_found_by_name(self, place: Place, kind: str) -> None:
        provider = faulty(place, "create", kind).open()
        with pytest.raises(errors.AmbiguousOutcome):
            rent_cluster(provider)
        assert [cluster.name for cluster in clusters_of(provider)] == ["gf-test-0-c"]

    def test_a_fresh_one_may_be_missing_from_listings_for_a_while(self, place: Place) -> None:
        provider = faulty(place, "inventory", "lag", after=3000).open()
        made = rent_cluster(provider)
        assert clusters_of(provider) == []
        assert isinstance(provider, RentsClusters)
        assert provider.cluster(made.cluster_id).name == "gf-test-0-c"
        eventually(lambda: clusters_of(provider))
        eventually(lambda: len(provider.inventory().instances) == len(NODES))


class TestAccounts:
    def test_other_credentials_see_nothing_and_share_the_stock(self, mock: Place) -> None:
        options = {"volumes": True, "ssh_keys": True, "clusters": True}
        mine = mock.with_options(**options, account="mine").open()
        other = mock.with_options(**options, account="other").open()
        made = make(mine, cheapest(mine))
        cluster = rent_cluster(mine)
        assert mine.whoami() != other.whoami()
        assert other.inventory().instances == ()
        assert other.inventory().account == other.whoami().account_id
        assert clusters_of(other) == extras_of(other) == []
        with pytest.raises(errors.InstanceNotFound):
            other.get(made.instance_id)
        assert other.terminate(made.instance_id) is TerminateAck.GONE
        assert isinstance(other, RentsClusters)
        assert other.delete_cluster(cluster.cluster_id) is TerminateAck.GONE
        assert len(running(mock)) == 1 + len(NODES)
        assert [o.stock for o in mine.offers(OfferQuery())] == [o.stock for o in other.offers(OfferQuery())]

    def test_whoami_may_answer_for_somebody_else(self, mock: Place) -> None:
        provider = faulty(mock, "whoami", "other-account").open()
        assert provider.whoami() != provider.whoami()
        assert provider.whoami() == mock.open().whoami()

    @pytest.mark.parametrize("kind", ["429", "transient"])
    def test_whoami_fails_like_other_reads(self, mock: Place, kind: str) -> None:
        with pytest.raises(errors.ProviderRefused):
            faulty(mock, "whoami", kind).open().whoami()


class TestLies:
    def test_a_market_may_keep_no_name_of_ours(self, mock: Place) -> None:
        provider = mock.with_options(ownership="none", volumes=True).open()
        made = rent(provider)
        assert provider.caps.ownership is Ownership.NONE
        assert provider.caps.creates_at_once == 1
        assert made.name == provider.inventory().instances[0].name == extras_of(provider)[0].name == ""

    def test_a_listing_may_name_everything_twice(self, mock: Place) -> None:
        provider = faulty(mock, "inventory", "duplicate").open()
        made = rent(provider)
        assert [i.instance_id for i in provider.inventory().instances] == [made.instance_id] * 2
        assert len(provider.inventory().instances) == 1

    def test_an_error_may_name_what_was_made(self, mock: Place) -> None:
        provider = faulty(mock, "create", "id-in-error").open()
        with pytest.raises(errors.AmbiguousOutcome) as caught:
            rent(provider)
        (made,) = provider.inventory().instances
        assert caught.value.instance_ids == (made.instance_id,)

    def test_what_is_rented_may_cost_more_than_the_request_allowed(self, mock: Place) -> None:
        provider = faulty(mock, "create", "dearer").open()
        offer = cheapest(provider)
        made = rent(provider)
        assert made.usd_per_hour is not None
        assert made.usd_per_hour > offer.usd_per_hour
        assert billing.read(market_of(mock))[0].usd_per_hour == made.usd_per_hour

    def test_a_fresh_instance_may_be_unknown_by_its_id_for_a_while(self, mock: Place) -> None:
        provider = faulty(mock, "get", "lag", after=3000).open()
        made = rent(provider)
        with pytest.raises(errors.InstanceNotFound):
            provider.get(made.instance_id)
        assert provider.terminate(made.instance_id) is TerminateAck.GONE
        assert provider.inventory().named(made.name)
        eventually(lambda: provider.terminate(made.instance_id) is TerminateAck.REQUESTED)

    @pytest.mark.parametrize(("kind", "state"), [("stopped", State.STOPPED), ("no-capacity", State.ERROR)])
    def test_what_was_accepted_may_never_run_and_bills_until_it_is_ended(
        self, mock: Place, kind: str, state: State
    ) -> None:
        provider = faulty(mock, "boot", kind).open()
        made = rent(provider)
        assert made.state is State.PROVISIONING
        in_state(provider, made.instance_id, state)
        assert control.running(market_of(mock)) == []
        assert len(running(mock)) == 1
        provider.terminate(made.instance_id)
        in_state(provider, made.instance_id, State.TERMINATED)
        assert running(mock) == []

    def test_spot_offers_are_asked_for_by_name(self, mock: Place) -> None:
        provider = mock.open()
        (spot,) = provider.offers(OfferQuery(spot=True))
        assert spot.spot
        assert provider.create(request(spot)).usd_per_hour == spot.usd_per_hour

    def test_it_tells_when_it_will_end_an_instance_itself(self, mock: Place) -> None:
        deadline = datetime.now(UTC) + timedelta(hours=1)
        assert rent(mock.open(), deadline_at=deadline).expires_at == deadline


def rent_cluster(provider: Provider, key: str = "gf-test-0-c") -> Cluster:
    assert isinstance(provider, RentsClusters)
    offer = next(o for o in provider.offers(OfferQuery()) if o.offer_id == "h200x8-fabric")
    ref = provider.ensure_ssh_key("gf-test", PUBLIC_KEY) if isinstance(provider, InstallsKeys) else None
    return provider.create_cluster(cluster_request(offer, key=key, ssh_key_ref=ref))


def cluster_request(offer: Any, **changes: Any) -> ClusterRequest:
    values: dict[str, Any] = {
        "key": "gf-test-0-c",
        "fleet": "test",
        "nodes": NODES,
        "offer": offer,
        "max_usd_per_hour": offer.usd_per_hour,
        "ssh_public_key": PUBLIC_KEY,
        "disk_gb": 100,
    }
    return ClusterRequest(**(values | changes))


def clusters_of(provider: Provider) -> list[Cluster]:
    assert isinstance(provider, RentsClusters)
    return provider.clusters()


def extras_of(provider: Provider) -> list[Any]:
    assert isinstance(provider, HasExtras)
    return provider.extras()


def running(place: Place) -> list[billing.Charge]:
    return [charge for charge in billing.read(market_of(place)) if charge.ended is None]


def test_the_market_ends_with_everything_beside_it(mock: Place, tmp_path: Path) -> None:
    place = mock.with_options(volumes=True, ssh_keys=True, clusters=True)
    provider = place.open()
    make(provider, cheapest(provider))
    rent_cluster(provider)
    control.stop_all(market_of(place))
    assert running(place) == []
    assert billing.keys(market_of(place)) == []
    assert all(charge.ended for charge in billing.volumes(market_of(place)))
