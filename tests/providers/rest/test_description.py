"""A description with a slip in it is refused by name, and a guess rents nothing."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpufleet.errors import InvalidFleet
from gpufleet.providers.registry import load_provider_file, provider_names
from gpufleet.providers.rest.expressions import fill, gpu_model, login
from gpufleet.providers.rest.loading import check_description
from gpufleet.providers.rest.pacing import Pacer
from tests.providers.fakes.backend import KEY, served
from tests.providers.fakes.nexgpu import Nexgpu
from tests.providers.places import Place
from tests.providers.rest.provider import described
from tests.providers.verified import verify

SHIPPED = [n for n in provider_names(Path()) if load_provider_file(n, fleet_dir=Path()).kind == "rest"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"offers.items": "offers["}, "offers.items"),
        ({"offers.fields.colour": "item.colour"}, "'colour' is not a field"),
        ({"instance.states": {"up": "sideways"}}, "instance.states.up"),
        ({"offers.price.per": "rack"}, "offers.price.per"),
        ({"create.request.body": {"a": "=foo("}}, "create.request.body"),
        ({"errors.rules": [{"text": "(", "is": "capacity"}]}, "errors.rules.0.text"),
        ({"list.paging": {"style": "token", "parameter": "t"}}, "needs 'next'"),
        ({"get.request.path": "instances"}, "get.request.path"),
        ({"colour": "red"}, "rest.colour"),
    ],
)
def test_a_slip_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidFleet, match="provider file example") as refusal:
        check_description(described(**change), name="example")
    assert said in refusal.value.message


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_file_says_how_far_it_was_verified(name: str) -> None:
    file = load_provider_file(name, fleet_dir=Path())
    check_description(file.rest, name=name)
    assert file.verified
    assert "never run against an account" in file.verified or "not at all" in file.verified
    if name == "nexgpu":
        assert file.rest["base_url"] is None
        assert file.rest["assumed"] is True
    else:
        assert file.rest["base_url"].startswith("https://")
        assert file.docs.startswith("https://")


def test_a_guess_rents_nothing_until_it_was_tried_and_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_KEY", KEY)
    with served(Nexgpu()) as url:
        place = Place("nexgpu", tmp_path, {"key": "env:FAKE_KEY", "base_url": url})
        assert "gpufleet providers verify nexgpu" in place.open().caps.create_refused
        verify(place)
        assert "acknowledged_unverified" in place.open().caps.create_refused
        acknowledged = place.with_options(acknowledged_unverified=True)
        assert "accept_unowned" in acknowledged.open().caps.create_refused
        assert acknowledged.open(accept_unowned=True).caps.create_refused == ""
        elsewhere = acknowledged.with_options(base_url=f"{url}/v2", accept_unowned=True)
        assert "was not tried" in elsewhere.open().caps.create_refused


def test_without_an_address_the_guess_is_not_even_opened(tmp_path: Path) -> None:
    with pytest.raises(InvalidFleet, match="its address is not public"):
        Place("nexgpu", tmp_path, {"key": "env:FAKE_KEY"}).open()


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("NVIDIA B200", "B200"),
        ("gpu_8x_b200_sxm6", "B200"),
        ("8x B200 SXM6 180GB", "B200"),
        ("H200_141GB", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("gpu_8x_h100_sxm5", "H100"),
        ("RTX 4090", None),
        ("GB200", None),
        ("", None),
    ],
)
def test_a_gpu_is_known_by_whatever_name_the_provider_gives_it(text: str, model: str | None) -> None:
    assert gpu_model(text) == model


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("root@203.0.113.7 -p 1234", ("root", "203.0.113.7", 1234)),
        (["ssh ubuntu@host.example"], ("ubuntu", "host.example", None)),
        ([None], (None, None, None)),
        ("203.0.113.7:22", (None, "203.0.113.7", 22)),
        (None, (None, None, None)),
    ],
)
def test_a_login_is_read_from_a_command_line(text: Any, parts: tuple[Any, ...]) -> None:
    assert tuple(login(text, part) for part in ("user", "host", "port")) == parts


def test_what_is_null_is_left_out_of_a_request_and_text_stays_text() -> None:
    values = {"request": {"key": "k", "deadline_at": None}, "n": 8}
    template = {
        "name": "=request.key",
        "end": "=request.deadline_at",
        "count": "=n",
        "fixed": "SECURE",
        "list": ["=n", "=x"],
    }
    assert fill(template, values) == {"name": "k", "count": 8, "fixed": "SECURE", "list": [8]}


@pytest.mark.report("skypilot 5438")
def test_turns_are_handed_out_in_order_and_each_once() -> None:
    time = [100.0]
    pacer = Pacer({"create": Decimal(12), "*": Decimal(1)}, clock=lambda: time[0])
    assert [pacer.take_turn("create") for _ in range(3)] == [0.0, 12.0, 24.0]
    assert pacer.take_turn("list") == 25.0
    time[0] += 60
    assert pacer.take_turn("list") == 0.0
    pacer.hold_back("create", 30)
    assert pacer.take_turn("create") == 30.0
