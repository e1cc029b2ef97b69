"""What leaves this machine, what is believed of the answer, and what never shows."""

from __future__ import annotations

import traceback
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpufleet.domain.market import GpuShape, InstanceState, OfferQuery
from gpufleet.errors import InvalidFleet, ProviderRefused
from gpufleet.providers import errors
from gpufleet.providers.base import HasExtras, InstallsKeys, Paced, RentsClusters, TerminateAck
from gpufleet.providers.rest.client import check_base_url
from gpufleet.providers.rest.failures import retry_after
from tests.providers.places import request
from tests.providers.rest.provider import OFFER, SECRET, URL, opened

ANSWERS_THAT_SAY_NO: list[tuple[httpx.Response, type[ProviderRefused]]] = [
    (httpx.Response(401, json={"message": "no"}), errors.AuthError),
    (httpx.Response(403, json={"message": "no"}), errors.AuthError),
    (httpx.Response(402, json={"message": "no"}), errors.PaymentError),
    (httpx.Response(422, json={"message": "no"}), errors.InvalidRequest),
    (httpx.Response(429, text="slow down"), errors.RateLimited),
]
ANSWERS_THAT_LEAVE_IT_OPEN: list[Any] = [
    httpx.Response(500, json={"message": "oops"}),
    httpx.Response(502, html="<h1>Bad Gateway</h1>"),
    httpx.Response(503, json={"message": "no capacity"}),
    httpx.Response(404, json={"message": "what?"}),
    httpx.Response(409, json={"message": "hm"}),
    httpx.Response(400, json={"message": "something"}),
    httpx.Response(200, html="<h1>Maintenance</h1>"),
    httpx.Response(200, json={"ok": True}),
    httpx.Response(201, text=""),
    httpx.Response(302, headers={"location": "https://elsewhere.example.org/"}),
    httpx.ReadTimeout("x"),
    httpx.ReadError("x"),
    httpx.RemoteProtocolError("x"),
    httpx.WriteError("x"),
]


def create(folder: Path, answer: Any, **changes: Any) -> None:
    with opened(folder, **changes) as (provider, router):
        router.get(f"{URL}/offers").mock(return_value=httpx.Response(200, json={"offers": [OFFER]}))
        (offer,) = provider.offers(OfferQuery())
        mocked = {"side_effect": answer} if isinstance(answer, Exception) else {"return_value": answer}
        route = router.post(f"{URL}/instances").mock(**mocked)
        try:
            provider.create(request(offer))
        finally:
            assert route.call_count == 1


@pytest.mark.parametrize(("answer", "kind"), ANSWERS_THAT_SAY_NO, ids=lambda v: getattr(v, "__name__", ""))
def test_a_create_is_refused_where_the_answer_says_so(
    tmp_path: Path, answer: httpx.Response, kind: type[ProviderRefused]
) -> None:
    with pytest.raises(kind):
        create(tmp_path, answer)


@pytest.mark.report("terraform-provider-lambdalabs 10")
@pytest.mark.parametrize("answer", ANSWERS_THAT_LEAVE_IT_OPEN, ids=repr)
def test_anything_else_after_a_create_has_left_is_unclear_and_sent_once(tmp_path: Path, answer: Any) -> None:
    with pytest.raises(errors.AmbiguousOutcome):
        create(tmp_path, answer)


def test_a_5xx_is_unclear_even_where_the_map_calls_it_capacity(tmp_path: Path) -> None:
    rules = [{"status": [503], "is": "capacity"}]
    with pytest.raises(errors.AmbiguousOutcome):
        create(tmp_path, httpx.Response(503, json={"message": "no capacity"}), **{"errors.rules": rules})


def test_ids_in_an_error_are_kept(tmp_path: Path) -> None:
    with pytest.raises(errors.AmbiguousOutcome) as unclear:
        create(tmp_path, httpx.Response(422, json={"message": "no", "id": "i-77"}))
    assert unclear.value.instance_ids == ("i-77",)


@pytest.mark.parametrize("error", [httpx.ConnectError("x"), httpx.ConnectTimeout("x")], ids=repr)
def test_a_create_that_never_left_is_told_as_such(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(errors.NotSent):
        create(tmp_path, error)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (httpx.Response(500), errors.Transient),
        (httpx.Response(400, json={"message": "?"}), errors.Transient),
        (httpx.ReadTimeout("x"), errors.Transient),
        (httpx.ConnectError("x"), errors.Transient),
        (httpx.Response(200, html="<h1>hello</h1>"), errors.ProtocolError),
        (httpx.Response(200, json={"rows": []}), errors.ProtocolError),
        (httpx.Response(200, json={"instances": {"i-1": {}}}), errors.ProtocolError),
        (httpx.Response(200, json={"instances": [{"name": "x"}]}), errors.ProtocolError),
        (httpx.Response(301, headers={"location": "/elsewhere"}), errors.ProtocolError),
        (httpx.Response(307, headers={"location": "https://elsewhere.example.org/"}), errors.ProtocolError),
    ],
    ids=repr,
)
def test_a_listing_is_complete_or_an_error(tmp_path: Path, answer: Any, kind: type[ProviderRefused]) -> None:
    with opened(tmp_path) as (provider, router):
        mocked = {"side_effect": answer} if isinstance(answer, Exception) else {"return_value": answer}
        route = router.get(f"{URL}/instances").mock(**mocked)
        with pytest.raises(kind):
            provider.inventory()
        assert route.call_count == 1


def test_a_redirect_never_takes_the_key_elsewhere(tmp_path: Path) -> None:
    with opened(tmp_path) as (provider, router):
        router.get(f"{URL}/instances").mock(
            return_value=httpx.Response(302, headers={"location": "https://evil.example/"})
        )
        evil = router.get("https://evil.example/").mock(return_value=httpx.Response(200, json={"instances": []}))
        with pytest.raises(errors.ProtocolError, match="redirected"):
            provider.inventory()
        assert not evil.called


@pytest.mark.parametrize(
    "auth", [{"type": "bearer"}, {"type": "header", "name": "X-API-KEY"}, {"type": "query", "name": "api_key"}]
)
def test_the_key_shows_nowhere_but_in_the_request(tmp_path: Path, auth: dict[str, str]) -> None:
    with opened(tmp_path, auth=auth) as (provider, router):
        sent = router.get(url__startswith=f"{URL}/instances").mock(
            return_value=httpx.Response(401, json={"message": "no"})
        )
        with pytest.raises(errors.AuthError) as refusal:
            provider.inventory()
        asked = sent.calls[0].request
        assert SECRET in f"{asked.url} {dict(asked.headers)}"
        told = "".join(traceback.format_exception(refusal.value)) + repr(refusal.value) + repr(vars(provider))
        assert SECRET not in told
        router.get(url__startswith=f"{URL}/instances").mock(side_effect=httpx.ReadError(f"GET {asked.url} failed"))
        with pytest.raises(errors.Transient) as broken:
            provider.inventory()
        assert SECRET not in "".join(traceback.format_exception(broken.value))


@pytest.mark.parametrize(
    "url", ["http://api.example.com", "ftp://x", "https://u:p@x", "https://x/?k=v", "api.example.com"]
)
def test_a_key_travels_only_to_https_or_to_this_machine(url: str) -> None:
    with pytest.raises(InvalidFleet):
        check_base_url(url, provider="example")
    assert check_base_url("http://127.0.0.1:8000/v1/", provider="example") == "http://127.0.0.1:8000/v1"


def test_certificates_are_checked(tmp_path: Path) -> None:
    with opened(tmp_path) as (provider, _):
        transport = provider._client._http._transport
        assert transport._pool._ssl_context.verify_mode.name == "CERT_REQUIRED"  # type: ignore[attr-defined]
        assert transport._pool._ssl_context.check_hostname  # type: ignore[attr-defined]


def test_an_id_cannot_leave_its_path(tmp_path: Path) -> None:
    with opened(tmp_path) as (provider, router):
        route = router.route().mock(return_value=httpx.Response(404, json={"message": "no"}))
        with pytest.raises(errors.InstanceNotFound):
            provider.get("../account?x=1")
        assert route.calls[0].request.url.raw_path == b"/v1/instances/..%2Faccount%3Fx%3D1"
        for empty in ("", ".", ".."):
            with pytest.raises(errors.InvalidRequest):
                provider.get(empty)


def test_a_missing_instance_is_gone_and_a_conflict_is_asked_again(tmp_path: Path) -> None:
    rules = [{"text": "already", "is": "ending"}]
    with opened(tmp_path, **{"errors.rules": rules}) as (provider, router):
        route = router.delete(f"{URL}/instances/i-1")
        route.side_effect = [
            httpx.Response(409, json={"message": "still provisioning"}),
            httpx.Response(409, json={"message": "it ends already"}),
            httpx.Response(202),
            httpx.Response(404, json={"message": "gone"}),
        ]
        acks = [provider.terminate("i-1") for _ in range(4)]
    assert acks == [TerminateAck.NOT_YET, TerminateAck.REQUESTED, TerminateAck.REQUESTED, TerminateAck.GONE]


def test_a_state_that_nobody_knows_counts_as_billing(tmp_path: Path) -> None:
    with opened(tmp_path) as (provider, router):
        rows = [
            {"id": 1, "name": "a", "state": "UP"},
            {"id": 2, "name": "b", "state": "frobnicating"},
            {"id": 3, "name": None},
        ]
        router.get(f"{URL}/instances").mock(return_value=httpx.Response(200, json={"instances": rows}))
        found = provider.inventory().instances
        assert [i.state for i in found] == [InstanceState.RUNNING, InstanceState.UNKNOWN, InstanceState.UNKNOWN]
        assert found[1].state.may_bill
        assert found[1].raw_state == "frobnicating"


def test_an_offer_without_a_usable_price_or_gpu_is_not_offered(tmp_path: Path) -> None:
    rows = [OFFER, OFFER | {"id": "o-2", "price": None}, OFFER | {"id": "o-3", "gpu": "Abacus"}, OFFER | {"id": None}]
    with opened(tmp_path) as (provider, router):
        router.get(f"{URL}/offers").mock(return_value=httpx.Response(200, json={"offers": rows}))
        (offer,) = provider.offers(OfferQuery())
        assert (offer.offer_id, offer.gpu) == ("o-1", GpuShape("H200", 8))
        assert str(offer.usd_per_hour) == "24.5"


def test_the_adapter_has_just_the_abilities_that_the_file_describes(tmp_path: Path) -> None:
    with opened(tmp_path) as (plain, _):
        assert isinstance(plain, Paced)
        assert not isinstance(plain, HasExtras | InstallsKeys | RentsClusters)


def test_the_account_is_told_by_a_mark_that_gives_the_key_away_to_nobody(tmp_path: Path) -> None:
    with opened(tmp_path) as (provider, _):
        one = provider.whoami().account_id
        assert SECRET not in one
    with opened(tmp_path) as (again, _):
        assert again.whoami().account_id == one
        (tmp_path / "key").write_text("another")
    other = tmp_path / "other"
    other.mkdir()
    with opened(other) as (third, _):
        (other / "key").write_text("another")
        assert third.whoami().account_id != one


@pytest.mark.parametrize(
    ("header", "seconds"), [("3", 3.0), ("0.5", 0.5), ("", None), ("soon", None), ("-1", None), ("999999", 3600.0)]
)
def test_how_long_to_wait_is_read_from_seconds(header: str, seconds: float | None) -> None:
    assert retry_after({"retry-after": header}) == seconds


def test_how_long_to_wait_is_read_from_a_date() -> None:
    told = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    found = retry_after({"retry-after": told})
    assert found is not None
    assert 25 < found <= 30
    assert retry_after({"retry-after": format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True)}) == 0.0
