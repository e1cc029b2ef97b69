"""The mock market beside the contract: time, processes, money, faults."""

from __future__ import annotations

import json
import signal
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from gpufleet.domain.market import InstanceState, OfferQuery
from gpufleet.domain.money import charge
from gpufleet.providers import errors
from gpufleet.providers.base import TerminateAck
from gpufleet.providers.mock import billing, control, processes
from tests.providers.places import (
    PUBLIC_KEY,
    Place,
    cheapest,
    eventually,
    in_state,
    market_of,
    mock_place,
    rent,
    request,
)

State = InstanceState


def node_json(place: Place, instance_id: str) -> dict[str, object]:
    return json.loads((market_of(place) / "nodes" / instance_id / "node.json").read_text())


class TestTime:
    def test_a_node_is_provisioned_then_boots_then_runs(self, mock: Place) -> None:
        place = mock.with_options(time_scale=400)
        made = rent(place.open())
        assert made.state is State.PROVISIONING
        assert made.ssh is None
        seen = [made.state]

        def running() -> bool:
            seen.append(place.open().get(made.instance_id).state)
            return seen[-1] is State.RUNNING

        eventually(running)
        order = list(dict.fromkeys(seen))
        assert order == [State.PROVISIONING, State.BOOTING, State.RUNNING]

    def test_an_ended_node_is_shown_terminating_first_and_then_terminated(self, mock: Place) -> None:
        provider = mock.with_options(time_scale=1_000_000).open()
        made = rent(provider)
        provider.terminate(made.instance_id)
        assert provider.get(made.instance_id).state is State.TERMINATING
        assert provider.get(made.instance_id).state is State.TERMINATED

    def test_a_terminated_instance_is_forgotten_after_a_while(self, mock: Place) -> None:
        provider = mock.with_options(forget_seconds=0).open()
        made = rent(provider)
        provider.terminate(made.instance_id)

        def forgotten() -> bool:
            try:
                provider.get(made.instance_id)
            except errors.InstanceNotFound:
                return True
            return False

        eventually(forgotten)
        assert provider.inventory().instances == ()
        assert provider.terminate(made.instance_id) is TerminateAck.GONE

    def test_the_deadline_ends_a_rental_without_us(self, mock: Place) -> None:
        provider = mock.open()
        deadline = datetime.now(UTC) + timedelta(seconds=0.3)
        made = rent(provider, deadline_at=deadline)
        ended = in_state(provider, made.instance_id, State.TERMINATED)
        assert ended.ended_at is not None
        assert deadline <= ended.ended_at <= deadline + timedelta(seconds=1)
        assert control.running(market_of(mock)) == []

    def test_a_deadline_in_the_past_is_refused(self, mock: Place) -> None:
        with pytest.raises(errors.InvalidRequest):
            rent(mock.open(), deadline_at=datetime.now(UTC))


class TestProcesses:
    def test_a_rented_node_is_a_process_and_a_terminated_one_is_none(self, mock: Place) -> None:
        provider = mock.open()
        made = rent(provider)
        eventually(lambda: len(control.running(market_of(mock))) >= 2)
        provider.terminate(made.instance_id)
        in_state(provider, made.instance_id, State.TERMINATED)
        assert control.running(market_of(mock)) == []

    def test_the_node_gets_nothing_of_the_callers_environment(
        self, mock: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_TOKEN", "hunter2")
        rent(mock.open())
        for pid in eventually(lambda: control.running(market_of(mock))):
            assert b"hunter2" not in Path(f"/proc/{pid}/environ").read_bytes()

    def test_a_crashed_node_process_is_started_again_by_the_next_call(self, mock: Place) -> None:
        provider = mock.open()
        made = rent(provider)
        root = str(market_of(mock) / "nodes" / made.instance_id)
        eventually(lambda: control.running(market_of(mock)))
        assert processes.end([root]) == {root}
        provider.get(made.instance_id)
        assert eventually(lambda: control.running(market_of(mock)))

    def test_a_node_whose_directory_was_deleted_can_still_be_terminated(self, mock: Place) -> None:
        provider = mock.open()
        made = rent(provider)
        root = market_of(mock) / "nodes" / made.instance_id
        processes.end([str(root)])
        for path in sorted(root.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        root.rmdir()
        provider.terminate(made.instance_id)
        in_state(provider, made.instance_id, State.TERMINATED)

    def test_two_markets_do_not_touch_each_other(self, mock: Place, tmp_path: Path) -> None:
        (tmp_path / "two").mkdir()
        other = mock_place(tmp_path / "two")
        try:
            rent(mock.open())
            rent(other.open())
            assert mock.open().whoami() != other.open().whoami()
            control.stop_all(market_of(mock))
            assert control.running(market_of(mock)) == []
            assert eventually(lambda: control.running(market_of(other)))
        finally:
            control.stop_all(market_of(other))

    def test_living_nodes_have_addresses_of_their_own_inside_the_network(self, mock: Place) -> None:
        provider = mock.with_options(network="127.65.9.0/29").open()
        ips = {rent(provider, f"gf-test-{n}-a").private_ip for n in range(3)}
        assert len(ips) == 3
        assert all(ip is not None and ip.startswith("127.65.9.") and ip != "127.65.9.0" for ip in ips)

    def test_a_full_network_is_no_capacity(self, mock: Place) -> None:
        provider = mock.with_options(network="127.65.9.16/31").open()
        rent(provider, "gf-test-0-a")
        rent(provider, "gf-test-1-a")
        with pytest.raises(errors.CapacityError):
            rent(provider, "gf-test-2-a")

    def test_an_ended_nodes_address_comes_back_with_another_host_key(self, mock: Place) -> None:
        provider = mock.open()
        first = in_state(provider, rent(provider).instance_id, State.RUNNING)
        provider.terminate(first.instance_id)
        in_state(provider, first.instance_id, State.TERMINATED)
        second = in_state(provider, rent(provider, "gf-test-0-b").instance_id, State.RUNNING)
        assert first.ssh is not None
        assert second.ssh is not None
        assert first.ssh.host == second.ssh.host
        assert first.ssh.host_key != second.ssh.host_key

    def test_host_keys_and_memory_are_readable_by_their_owner_only(self, mock: Place) -> None:
        made = rent(mock.open())
        for path in [
            market_of(mock) / "market.json",
            market_of(mock) / "nodes" / made.instance_id / "host_key",
        ]:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_the_node_file_says_what_was_rented(self, mock: Place) -> None:
        provider = mock.with_options(pace={"decode_tps": 50}).open()
        offer = next(o for o in provider.offers(OfferQuery()) if o.offer_id == "b200x8-east")
        made = provider.create(request(offer))
        facts = node_json(mock, made.instance_id)
        assert facts["gpu_model"] == "B200"
        assert facts["gpu_count"] == facts["gpu_count_visible"] == 8
        assert facts["vram_gb"] == 180
        assert facts["rdma"] == {"devices": 8, "gbps": 400}
        assert facts["pace"] == {"decode_tps": 50}
        assert facts["authorized_keys"] == [PUBLIC_KEY]
        assert facts["faults"] == []
        assert facts["boot_seconds"] == 240

    def test_a_node_program_that_does_not_exist_leaves_an_unclear_create_that_is_listed_nowhere_else(
        self, mock: Place
    ) -> None:
        provider = mock.with_options(node_command=["/no/such/program"]).open()
        with pytest.raises(errors.AmbiguousOutcome):
            rent(provider)
        made = mock.open().inventory().named("gf-test-0-a")
        assert len(made) == 1


class TestMoney:
    def test_the_meter_runs_from_the_creation_to_the_end_the_market_tells(self, mock: Place) -> None:
        provider = mock.open()
        made = rent(provider)
        running = billing.read(market_of(mock))
        assert [(line.instance_id, line.ended) for line in running] == [(made.instance_id, None)]
        provider.terminate(made.instance_id)
        ended = in_state(provider, made.instance_id, State.TERMINATED)
        (line,) = billing.read(market_of(mock))
        assert (line.started, line.ended) == (made.created_at, ended.ended_at)
        assert line.usd_per_hour == made.usd_per_hour

    def test_its_sums_agree_with_ours(self, mock: Place) -> None:
        provider = mock.open()
        offers = {o.offer_id: o for o in provider.offers(OfferQuery())}
        for n, offer_id in enumerate(["b200x8-north", "h200x8-west", "b200x8-east"]):
            made = provider.create(request(offers[offer_id], f"gf-test-{n}-m"))
            provider.terminate(made.instance_id)
            ended = in_state(provider, made.instance_id, State.TERMINATED)
            line = next(c for c in billing.read(market_of(mock)) if c.instance_id == made.instance_id)
            offer = offers[offer_id]
            assert made.created_at is not None
            assert ended.ended_at is not None
            assert line.usd == charge(
                offer.usd_per_hour,
                made.created_at,
                ended.ended_at,
                increment_s=offer.billing_increment_seconds,
                minimum_s=offer.min_rental_seconds,
            )
        assert sum(c.usd for c in billing.read(market_of(mock))) > Decimal("42.8")

    def test_a_line_is_written_once_however_often_the_market_is_called(self, mock: Place) -> None:
        provider = mock.open()
        made = rent(provider)
        provider.terminate(made.instance_id)
        in_state(provider, made.instance_id, State.TERMINATED)
        before = (market_of(mock) / "billing.json").read_text()
        provider.inventory()
        billing.read(market_of(mock))
        assert (market_of(mock) / "billing.json").read_text() == before

    def test_a_terminate_that_comes_late_is_paid(self, mock: Place) -> None:
        provider = mock.with_options(
            faults=[{"at": "terminate", "kind": "ok-but-running", "after": 3000}], time_scale=10_000
        ).open()
        made = rent(provider)
        before = datetime.now(UTC)
        provider.terminate(made.instance_id)
        ended = in_state(provider, made.instance_id, State.TERMINATED)
        assert ended.ended_at is not None
        assert ended.ended_at - before >= timedelta(seconds=0.3)


def faulty(place: Place, at: str, kind: str, **more: object) -> Place:
    return place.with_options(faults=[{"at": at, "kind": kind, **more}])


class TestRefusedCreates:
    @pytest.mark.parametrize(
        ("kind", "error"),
        [
            ("capacity", errors.CapacityError),
            ("quota", errors.QuotaError),
            ("payment", errors.PaymentError),
            ("auth", errors.AuthError),
            ("429", errors.RateLimited),
            ("not-sent", errors.NotSent),
            ("price-change", errors.PriceChanged),
            ("error-500", errors.AmbiguousOutcome),
        ],
    )
    def test_nothing_is_made_and_the_next_try_works(
        self, mock: Place, kind: str, error: type[errors.ProviderRefused]
    ) -> None:
        provider = faulty(mock, "create", kind).open()
        with pytest.raises(error):
            rent(provider)
        assert provider.inventory().instances == ()
        assert control.running(market_of(mock)) == []
        rent(provider, "gf-test-0-b", max_usd_per_hour=Decimal(1000))

    @pytest.mark.parametrize(("given", "told"), [({}, 1.0), ({"retry_after": 7}, 7.0)])
    def test_a_429_may_say_how_long_to_wait(self, mock: Place, given: dict[str, float], told: float) -> None:
        with pytest.raises(errors.RateLimited) as caught:
            rent(faulty(mock, "create", "429", **given).open())
        assert caught.value.retry_after == told

    def test_a_price_change_shows_in_the_next_offers(self, mock: Place) -> None:
        provider = faulty(mock, "create", "price-change").open()
        before = cheapest(provider)
        with pytest.raises(errors.PriceChanged):
            provider.create(request(before))
        after = {o.offer_id: o for o in mock.open().offers(OfferQuery())}[before.offer_id]
        assert after.usd_per_hour == before.usd_per_hour * Decimal("1.5")

    def test_a_price_change_within_the_limit_is_rented_at_the_new_price(self, mock: Place) -> None:
        provider = faulty(mock, "create", "price-change").open()
        offer = cheapest(provider)
        made = provider.create(request(offer, max_usd_per_hour=offer.usd_per_hour * 2))
        assert made.usd_per_hour == offer.usd_per_hour * Decimal("1.5")

    @pytest.mark.parametrize("change", [{"key": "Upper"}, {"key": "x" * 51}, {"key": ""}, {"ssh_public_key": ""}])
    def test_a_malformed_request_is_invalid(self, mock: Place, change: dict[str, str]) -> None:
        provider = mock.open()
        with pytest.raises(errors.InvalidRequest):
            provider.create(replace(request(cheapest(provider)), **change))


class TestUnclearCreates:
    @pytest.mark.parametrize(("kind", "made"), [("lost-answer", 1), ("error-500-after-create", 1), ("double", 2)])
    def test_what_was_made_is_found_by_its_key(self, mock: Place, kind: str, made: int) -> None:
        provider = faulty(mock, "create", kind).open()
        with pytest.raises(errors.AmbiguousOutcome):
            rent(provider)
        assert len(provider.inventory().named("gf-test-0-a")) == made
        assert len(billing.read(market_of(mock))) == made

    def test_a_hanging_create_answers_late(self, mock: Place) -> None:
        provider = faulty(mock, "create", "hang", after=1000).open()
        assert rent(provider).name == "gf-test-0-a"

    def test_the_same_key_twice_makes_two_unless_the_market_is_idempotent(self, mock: Place) -> None:
        assert rent(mock.open()).instance_id != rent(mock.open()).instance_id
        same = mock.with_options(idempotent_create=True).open()
        assert same.caps.idempotent_create
        assert rent(same, "gf-test-9-i").instance_id == rent(same, "gf-test-9-i").instance_id


class TestBadReads:
    def test_a_transient_failure_passes(self, mock: Place) -> None:
        provider = faulty(mock, "get", "transient").open()
        made = rent(provider)
        with pytest.raises(errors.Transient):
            provider.get(made.instance_id)
        assert provider.get(made.instance_id).name == made.name

    def test_a_fault_comes_as_often_as_it_says_over_all_processes(self, mock: Place) -> None:
        place = faulty(mock, "inventory", "429", times=3)
        for _ in range(3):
            with pytest.raises(errors.RateLimited):
                place.open().inventory()
        assert place.open().inventory().instances == ()

    def test_a_partial_listing_is_an_error_and_no_listing(self, mock: Place) -> None:
        provider = faulty(mock, "inventory", "partial").open()
        rent(provider)
        with pytest.raises(errors.ProtocolError):
            provider.inventory()

    def test_an_empty_listing_lies_while_a_read_by_id_finds_the_instance(self, mock: Place) -> None:
        provider = faulty(mock, "inventory", "empty").open()
        made = rent(provider)
        assert provider.inventory().instances == ()
        assert provider.get(made.instance_id).name == made.name
        assert len(provider.inventory().instances) == 1

    def test_a_fresh_instance_may_be_missing_from_listings_for_a_while(self, mock: Place) -> None:
        provider = faulty(mock, "inventory", "lag", after=2000).open()
        made = rent(provider)
        assert provider.inventory().instances == ()
        assert provider.get(made.instance_id).name == made.name
        eventually(lambda: provider.inventory().named(made.name))

    def test_the_settle_window_covers_the_lag(self, mock: Place) -> None:
        provider = faulty(mock, "inventory", "lag").open()
        made = rent(provider)
        eventually(lambda: provider.inventory().named(made.name), within=provider.caps.settle_seconds + 1)

    def test_an_unknown_word_for_a_state_may_still_bill(self, mock: Place) -> None:
        provider = faulty(mock, "get", "unknown-state").open()
        seen = provider.get(rent(provider).instance_id)
        assert seen.state is State.UNKNOWN
        assert seen.raw_state == "rebalancing"
        assert seen.state.may_bill

    def test_a_fault_may_concern_one_node(self, mock: Place) -> None:
        provider = faulty(mock, "get", "transient", node="prefill/0").open()
        decode, prefill = rent(provider), rent(provider, "gf-test-0-p", "prefill/0")
        provider.get(decode.instance_id)
        with pytest.raises(errors.Transient):
            provider.get(prefill.instance_id)

    def test_a_fault_may_concern_the_nth_create(self, mock: Place) -> None:
        provider = faulty(mock, "create", "capacity", nth=2).open()
        rent(provider, "gf-test-0-a")
        with pytest.raises(errors.CapacityError):
            rent(provider, "gf-test-1-a")
        rent(provider, "gf-test-2-a")

    def test_chance_is_the_same_for_the_same_seed(self, tmp_path: Path) -> None:
        def run(name: str, seed: int) -> list[bool]:
            (tmp_path / name).mkdir()
            place = mock_place(tmp_path / name, seed=seed)
            provider = faulty(place, "inventory", "transient", times=100, chance=0.5).open()
            return [_is_refused(provider.inventory) for _ in range(20)]

        assert run("a", 1) == run("b", 1)
        assert run("c", 1) != run("d", 2)
        assert {True, False} == set(run("e", 3))


class TestBadEnds:
    def test_a_failed_terminate_changes_nothing_and_may_be_repeated(self, mock: Place) -> None:
        provider = faulty(mock, "terminate", "error-500").open()
        made = rent(provider)
        with pytest.raises(errors.Transient):
            provider.terminate(made.instance_id)
        assert provider.get(made.instance_id).state in {State.PROVISIONING, State.BOOTING, State.RUNNING}
        provider.terminate(made.instance_id)
        in_state(provider, made.instance_id, State.TERMINATED)

    def test_a_yes_may_be_followed_by_an_instance_that_still_runs(self, mock: Place) -> None:
        provider = faulty(mock, "terminate", "ok-but-running", after=5000).open()
        made = rent(provider)
        in_state(provider, made.instance_id, State.RUNNING)
        assert provider.terminate(made.instance_id) is TerminateAck.REQUESTED
        assert provider.get(made.instance_id).state is State.RUNNING
        assert control.running(market_of(mock))
        in_state(provider, made.instance_id, State.TERMINATED)

    def test_a_yes_may_mean_nothing_at_all(self, mock: Place) -> None:
        provider = faulty(mock, "terminate", "ignored").open()
        made = rent(provider)
        assert provider.terminate(made.instance_id) is TerminateAck.REQUESTED
        assert provider.get(made.instance_id).state.may_bill
        provider.terminate(made.instance_id)
        in_state(provider, made.instance_id, State.TERMINATED)

    def test_a_node_may_refuse_to_end_while_it_is_provisioned(self, mock: Place) -> None:
        provider = mock.with_options(refuse_early_terminate=True, time_scale=100).open()
        made = rent(provider)
        assert provider.terminate(made.instance_id) is TerminateAck.NOT_YET
        in_state(provider, made.instance_id, State.BOOTING, State.RUNNING)
        assert provider.terminate(made.instance_id) is TerminateAck.REQUESTED

    def test_not_yet_as_a_fault(self, mock: Place) -> None:
        provider = faulty(mock, "terminate", "not-yet").open()
        made = rent(provider)
        assert provider.terminate(made.instance_id) is TerminateAck.NOT_YET
        assert provider.terminate(made.instance_id) is TerminateAck.REQUESTED


class TestBadNodes:
    @pytest.mark.parametrize(
        ("kind", "field", "value"),
        [
            ("bad-gpu", "gpu_count_visible", 7),
            ("old-driver", "driver", "550.54.15"),
            ("small-disk", "disk_gb", 200),
            ("slow", "boot_seconds", 1200.0),
        ],
    )
    def test_the_node_file_tells_the_stand_ins(self, mock: Place, kind: str, field: str, value: object) -> None:
        provider = faulty(mock, "boot", kind, node="decode/0").open()
        offer = next(o for o in provider.offers(OfferQuery()) if o.offer_id == "b200x8-east")
        bad = provider.create(request(offer, "gf-test-0-a"))
        good = provider.create(request(offer, "gf-test-0-b"))
        assert node_json(mock, bad.instance_id)[field] == value
        assert node_json(mock, good.instance_id)[field] != value
        assert bad.host_id != good.host_id

    def test_faults_of_the_stand_ins_are_passed_on_as_they_are(self, mock: Place) -> None:
        made = rent(faulty(mock, "machine", "drop-connection:3").open())
        assert node_json(mock, made.instance_id)["faults"] == ["drop-connection:3"]

    def test_a_node_may_never_come_up(self, mock: Place) -> None:
        provider = faulty(mock, "boot", "never").with_options(time_scale=1_000_000).open()
        made = rent(provider)
        in_state(provider, made.instance_id, State.BOOTING)
        assert node_json(mock, made.instance_id)["boot_seconds"] == 1e9

    def test_a_preempted_node_is_dead_and_still_billed_until_it_is_terminated(self, mock: Place) -> None:
        provider = faulty(mock, "run", "preemption", after=100).open()
        made = rent(provider)
        seen = in_state(provider, made.instance_id, State.PREEMPTED)
        assert seen.ended_at is None
        assert control.running(market_of(mock)) == []
        assert billing.read(market_of(mock))[0].ended is None
        provider.terminate(made.instance_id)
        in_state(provider, made.instance_id, State.TERMINATED)
        assert billing.read(market_of(mock))[0].ended is not None

    def test_the_host_key_may_differ_from_what_the_market_tells(self, mock: Place) -> None:
        place = faulty(mock, "boot", "host-key-change")
        made = rent(place.open())
        seen = in_state(place.open(), made.instance_id, State.RUNNING)
        assert seen.ssh is not None
        assert seen.ssh.host_key != _shown_key(mock, made.instance_id)

    def test_the_host_key_may_change_while_the_node_runs(self, mock: Place) -> None:
        place = faulty(mock, "run", "host-key-change", after=2000)
        made = rent(place.open())
        first = _shown_key(mock, made.instance_id)

        def changed() -> bool:
            place.open().get(made.instance_id)
            return _shown_key(mock, made.instance_id) != first

        eventually(changed)
        assert eventually(lambda: control.running(market_of(mock)))


class TestMemory:
    def test_a_damaged_memory_is_said_and_never_taken_for_empty(self, mock: Place) -> None:
        rent(mock.open())
        (market_of(mock) / "market.json").rename(market_of(mock) / "kept")
        (market_of(mock) / "market.json").write_text("{")
        with pytest.raises(errors.ProtocolError) as caught:
            mock.open().inventory()
        assert "market.json" in caught.value.message
        (market_of(mock) / "kept").rename(market_of(mock) / "market.json")

    def test_stopping_a_market_that_does_not_exist_is_fine(self, tmp_path: Path) -> None:
        control.stop_all(tmp_path / "none")
        assert not (tmp_path / "none").exists()

    def test_stop_all_ends_every_rental(self, mock: Place) -> None:
        rent(mock.open())
        control.stop_all(market_of(mock))
        assert [line.ended is None for line in billing.read(market_of(mock))] == [False]
        assert {i.state for i in mock.open().inventory().instances} == {State.TERMINATED}

    def test_another_catalog_may_be_used(self, mock: Place) -> None:
        (mock.folder / "own.yaml").write_text(
            "- {offer_id: a, gpu: 'B200:8', vram_gb: 180, usd_per_hour: '1.5', region: r, stock: 1, boot_seconds: 1}\n"
        )
        (offer,) = mock.with_options(catalog="own.yaml").open().offers(OfferQuery())
        assert (offer.offer_id, offer.usd_per_hour, offer.stock) == ("a", Decimal("1.5"), 1)


def _shown_key(place: Place, instance_id: str) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

    path = market_of(place) / "nodes" / instance_id / "host_key"
    public = load_ssh_private_key(path.read_bytes(), None).public_key()
    return public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def _is_refused(call: object) -> bool:
    assert callable(call)
    try:
        call()
    except errors.ProviderRefused:
        return True
    return False


def test_the_signal_that_ends_nodes_reaches_only_nodes() -> None:
    assert processes.by_root(["/no/such/root"]) == {}
    assert processes.end(["/no/such/root"]) == {"/no/such/root"}
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
