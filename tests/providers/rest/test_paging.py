"""Every page, or an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpufleet.providers.errors import ProtocolError
from gpufleet.providers.rest import paging
from tests.providers.rest.provider import URL, opened

STYLES: dict[str, dict[str, Any]] = {
    "offset": {"style": "offset", "parameter": "at", "size_parameter": "n", "size": 3, "total": "total"},
    "page": {"style": "page", "parameter": "at", "first": 1, "size_parameter": "n", "size": 3},
    "token": {"style": "token", "parameter": "at", "size_parameter": "n", "size": 3, "next": "next", "total": "total"},
}


def serve(style: str, count: int) -> Any:
    rows = [{"id": f"i-{n}", "name": "x", "state": "up"} for n in range(count)]

    def answer(request: httpx.Request) -> httpx.Response:
        asked = request.url.params
        at, size = int(asked.get("at", 0)), int(asked["n"])
        start = (at - 1) * size if style == "page" else at
        after = start + size
        body: dict[str, Any] = {"instances": rows[start:after], "total": count}
        body["next"] = str(after) if after < count else None
        return httpx.Response(200, json=body)

    return answer


@pytest.mark.parametrize("style", STYLES)
@given(count=st.integers(0, 11))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_every_row_of_every_page_is_listed(tmp_path: Path, style: str, count: int) -> None:
    with opened(tmp_path, **{"list.paging": STYLES[style]}) as (provider, router):
        router.get(url__startswith=f"{URL}/instances").mock(side_effect=serve(style, count))
        assert [i.instance_id for i in provider.inventory().instances] == [f"i-{n}" for n in range(count)]


@pytest.mark.parametrize("style", ["offset", "token"])
def test_a_count_that_does_not_fit_is_no_listing(tmp_path: Path, style: str) -> None:
    body = {"instances": [{"id": "i-1", "name": "x", "state": "up"}], "total": 2, "next": None}
    with opened(tmp_path, **{"list.paging": {**STYLES[style], "size": 1}}) as (provider, router):
        answers = [httpx.Response(200, json=body), httpx.Response(200, json={**body, "instances": []})]
        router.get(url__startswith=f"{URL}/instances").mock(side_effect=answers)
        with pytest.raises(ProtocolError, match="announces 2"):
            provider.inventory()


@pytest.mark.parametrize("style", STYLES)
def test_a_page_that_comes_twice_is_no_listing(tmp_path: Path, style: str) -> None:
    body = {"instances": [{"id": f"i-{n}", "name": "x", "state": "up"} for n in range(3)], "total": 99, "next": "7"}
    with opened(tmp_path, **{"list.paging": STYLES[style]}) as (provider, router):
        router.get(url__startswith=f"{URL}/instances").mock(return_value=httpx.Response(200, json=body))
        with pytest.raises(ProtocolError, match="twice"):
            provider.inventory()


def test_a_listing_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "MOST_PAGES", 5)
    with opened(tmp_path, **{"list.paging": STYLES["token"]}) as (provider, router):
        pages = (
            httpx.Response(200, json={"instances": [{"id": str(n), "name": "x", "state": "up"}], "next": str(n)})
            for n in range(1, 99)
        )
        router.get(url__startswith=f"{URL}/instances").mock(side_effect=pages)
        with pytest.raises(ProtocolError, match="does not end"):
            provider.inventory()


def test_a_page_that_fails_fails_the_listing(tmp_path: Path) -> None:
    first = httpx.Response(200, json={"instances": [{"id": str(n), "name": "x", "state": "up"} for n in range(3)]})
    with opened(tmp_path, **{"list.paging": STYLES["page"]}) as (provider, router):
        router.get(url__startswith=f"{URL}/instances").mock(
            side_effect=[first, httpx.Response(200, json={"instances": None})]
        )
        with pytest.raises(ProtocolError):
            provider.inventory()
