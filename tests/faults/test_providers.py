"""Reports about what a provider answers, against the described provider's recorded shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpufleet.domain.market import ExtraKind, InstanceState, OfferQuery
from gpufleet.errors import ProviderRefused
from gpufleet.providers import errors
from gpufleet.providers.base import HasExtras, Provider, TerminateAck
from gpufleet.providers.rest.pacing import Pacer
from tests.providers.fakes.backend import KEY, Answer, Backend, Call, Refused, served
from tests.providers.fakes.lambda_ import Lambda
from tests.providers.fakes.runpod import Runpod
from tests.providers.fakes.vast import Vast
from tests.providers.fakes.verda import CLIENT_ID, Verda
from tests.providers.places import Place, cheapest, make, rent, request

Opened = Callable[..., Provider]


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    """Open a described provider against its backend."""
    monkeypatch.setenv("FAKE_KEY", KEY)
    monkeypatch.setenv("FAKE_CLIENT", CLIENT_ID)
    monkeypatch.setattr(Pacer, "take_turn", lambda *_: 0.0)
    with ExitStack() as stack:

        def opened(name: str, backend: Backend, **more: Any) -> Provider:
            url = stack.enter_context(served(backend))
            client = {"client_id": "env:FAKE_CLIENT"} if name == "verda" else {}
            return Place(name, tmp_path, {"key": "env:FAKE_KEY", "base_url": url, **client, **more}).open()

        yield opened


def test_skypilot_10517_the_listing_is_read_where_it_is_not_deprecated(at: Opened) -> None:
    backend = Vast()
    provider = at("vast", backend)
    made = rent(provider)
    assert [i.instance_id for i in provider.inventory().instances] == [made.instance_id]
    assert all(call.path != "/api/v0/instances/" for call in backend.calls)


def test_skypilot_10517_a_count_that_does_not_fit_the_list_is_no_listing(at: Opened) -> None:
    backend = Vast()
    provider = at("vast", backend)
    rent(provider)
    body = {"success": True, "instances": [], "total_instances": 1, "next_token": None}
    backend.faults.append(("GET", "/api/v1/instances/", lambda _: Answer(200, body)))
    with pytest.raises(errors.ProtocolError):
        provider.inventory()


def test_dstack_4030_a_200_that_says_no_is_no_termination(at: Opened) -> None:
    backend = Vast()
    provider = at("vast", backend)
    made = rent(provider)
    no = Answer(200, {"success": False, "error": "server_error", "msg": "try again"})
    backend.faults.append(("DELETE", "/instances/", lambda _: no))
    with pytest.raises(ProviderRefused):
        provider.terminate(made.instance_id)


def test_dstack_4036_the_contract_that_an_error_names_is_known(at: Opened) -> None:
    backend = Vast()
    provider = at("vast", backend)
    body = {"success": False, "error": "invalid_price", "msg": "bid too low", "new_contract": 4711}
    backend.faults.append(("PUT", "/asks/", lambda _: Answer(400, body)))
    with pytest.raises(errors.AmbiguousOutcome) as unclear:
        rent(provider)
    assert unclear.value.instance_ids == ("4711",)


def test_transformerlab_2305_a_500_after_the_pod_was_made_is_unclear_and_found_by_name(at: Opened) -> None:
    backend = Runpod()
    provider = at("runpod", backend)

    def made_and_failed(call: Call) -> Answer:
        assert backend.answer(call).status == 201
        return Answer(500, {"title": "Internal Server Error", "status": 500, "detail": "oops"})

    backend.faults.append(("POST", "/v2/pods$", made_and_failed))
    with pytest.raises(errors.AmbiguousOutcome):
        rent(provider, "gf-test-decode0-aaaabbbbbbbb")
    assert len(provider.inventory().named("gf-test-decode0-aaaabbbbbbbb")) == 1


def test_comfyui_276_a_create_is_one_request_whatever_comes_back(at: Opened) -> None:
    for answer in (Answer(502, "bad gateway"), Answer(503, {}), Answer(429, "slow"), Answer(400, {"detail": "?"})):
        backend = Runpod()
        provider = at("runpod", backend)
        backend.faults.append(("POST", "/v2/pods$", lambda _, answer=answer: answer))
        with pytest.raises(ProviderRefused):
            rent(provider)
        assert sum(call.method == "POST" for call in backend.calls) == 1


def test_vast_cli_482_ending_what_is_gone_already_succeeds(at: Opened) -> None:
    assert at("vast", Vast()).terminate("12345") is TerminateAck.GONE


def test_fvdb_768_the_key_travels_in_the_create_call_itself(at: Opened) -> None:
    backend = Lambda()
    rent(at("lambda", backend), "gf-test-decode0-aaaabbbbbbbb")
    (create,) = [c for c in backend.calls if c.path == "/instance-operations/launch"]
    assert create.body["name"] == "gf-test-decode0-aaaabbbbbbbb"
    assert create.body["tags"] == [{"key": "gpufleet-key", "value": "gf-test-decode0-aaaabbbbbbbb"}]


def test_dstack_3734_a_volume_that_outlives_its_instance_is_known_and_deleted_for_good(at: Opened) -> None:
    backend = Verda()
    provider = at("verda", backend)
    made = rent(provider)
    (extra,) = provider.get(made.instance_id).extras
    assert (extra.kind, extra.ref) == (ExtraKind.VOLUME, f"vol-{made.instance_id}")
    assert isinstance(provider, HasExtras)
    assert provider.delete_extra(extra.kind, extra.ref) is TerminateAck.NOT_YET
    while provider.terminate(made.instance_id) is TerminateAck.NOT_YET:
        provider.get(made.instance_id)
    assert provider.delete_extra(extra.kind, extra.ref) is TerminateAck.REQUESTED
    assert backend.volumes == {}


def test_skypilot_4392_what_cannot_be_ended_yet_is_asked_again(at: Opened) -> None:
    backend = Verda()
    provider = at("verda", backend)
    made = rent(provider)
    assert provider.terminate(made.instance_id) is TerminateAck.NOT_YET


def test_skypilot_9356_a_state_that_nobody_knows_is_shown_and_counts_as_billing(at: Opened) -> None:
    backend = Runpod()
    provider = at("runpod", backend)
    made = rent(provider)
    backend.states = {**backend.states, "provisioning": "HIBERNATED"}  # type: ignore[misc]
    (seen,) = provider.inventory().instances
    assert (seen.instance_id, seen.state, seen.raw_state) == (made.instance_id, InstanceState.UNKNOWN, "HIBERNATED")
    assert seen.state.may_bill


def test_skypilot_3029_ending_needs_the_id_alone(at: Opened) -> None:
    provider = at("runpod", Runpod())
    made = rent(provider)
    assert provider.get(made.instance_id).ssh is None
    assert provider.terminate(made.instance_id) is TerminateAck.REQUESTED


def test_skypilot_3410_ending_what_ends_already_is_no_error(at: Opened) -> None:
    provider = at("lambda", Lambda())
    made = rent(provider)
    assert [provider.terminate(made.instance_id) for _ in range(2)] == [TerminateAck.REQUESTED] * 2


def test_dstack_3031_a_discontinued_instance_is_gone(at: Opened) -> None:
    provider = at("verda", Verda())
    made = rent(provider)
    for _ in range(3):
        provider.get(made.instance_id)
    assert provider.terminate(made.instance_id) is TerminateAck.REQUESTED
    assert provider.terminate(made.instance_id) is TerminateAck.GONE


def test_dstack_3753_an_instance_that_failed_for_good_is_an_error_at_once(at: Opened) -> None:
    backend = Vast()
    provider = at("vast", backend)
    made = rent(provider)
    row = backend.row(backend.made[made.instance_id]) | {"status_msg": "Error: OCI runtime create failed: layer"}
    backend.faults.append(("GET", "/instances/", lambda _: Answer(200, {"instances": row})))
    assert provider.get(made.instance_id).state is InstanceState.ERROR


def test_skypilot_7084_one_create_makes_one_node(at: Opened) -> None:
    backend = Lambda()
    rent(at("lambda", backend))
    (create,) = [c for c in backend.calls if c.path == "/instance-operations/launch"]
    assert "quantity" not in create.body


def test_skypilot_2126_a_quota_is_no_missing_stock(at: Opened) -> None:
    backend = Lambda()
    provider = at("lambda", backend)
    body = {"error": {"code": "global/quota-exceeded", "message": "Quota exceeded.", "suggestion": ""}}
    backend.faults.append(("POST", "launch", lambda _: Answer(400, body)))
    with pytest.raises(errors.QuotaError):
        rent(provider)


def test_skypilot_4914_a_bid_is_for_the_whole_machine(at: Opened) -> None:
    backend = Vast()
    provider = at("vast", backend)
    offer = provider.offers(OfferQuery(spot=True))[0]
    assert offer.spot
    assert offer.gpu.count == 8
    provider.create(request(offer, max_usd_per_hour=Decimal("12.50")))
    (create,) = [c for c in backend.calls if c.method == "PUT"]
    assert create.body["price"] == 12.5


def test_dstack_1890_what_an_instance_really_costs_is_told(at: Opened) -> None:
    provider = at("vast", Vast())
    made = rent(provider)
    offer_without_disk = cheapest(provider)
    seen = provider.get(made.instance_id).usd_per_hour
    assert seen is not None
    assert seen != offer_without_disk.usd_per_hour


def test_llm_autoeval_3_no_instances_left_is_capacity_and_nothing_else(at: Opened) -> None:
    backend = Runpod()
    provider = at("runpod", backend)
    offer = cheapest(provider)
    backend.stock = dict.fromkeys(backend.stock, 0)
    with pytest.raises(errors.CapacityError, match="no longer any instances"):
        make(provider, offer)


def test_dstack_3910_a_wrong_request_is_not_taken_for_missing_stock(at: Opened) -> None:
    backend = Runpod()
    provider = at("runpod", backend)

    def wrong(_: Call) -> Answer:
        raise Refused(422, {"title": "Unprocessable", "status": 422, "detail": "minCudaVersion: unknown"})

    backend.faults.append(("POST", "/v2/pods$", wrong))
    with pytest.raises(errors.InvalidRequest):
        rent(provider)


def test_skypilot_6051_members_of_clusters_are_in_the_listing(at: Opened) -> None:
    backend = Runpod()
    provider = at("runpod", backend)
    provider.inventory()
    (listing,) = [c for c in backend.calls if c.path == "/v2/pods"]
    assert listing.query == {"includeClusterPods": "true"}
