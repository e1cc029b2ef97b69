"""Rentals that are containers: what is asked for, and what is refused before it costs money."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from gpufleet.engine.observe import plan_now
from gpufleet.engine.standing import with_standing
from gpufleet.serving.inside import MAX_START_CHARACTERS
from tests.engine.described import Market, described_market
from tests.engine.test_real_markets import end_everything, rent_here
from tests.providers.fakes.runpod import Runpod
from tests.providers.fakes.vast import Vast
from tests.providers.places import PUBLIC_KEY

IMAGE = "vllm/vllm-openai:v0.26.0"


def created(market: Market) -> dict[str, Any]:
    """The body of the only create call."""
    with market.session() as session:
        rent_here(session)
        end_everything(session)
    (call,) = [c for c in market.backend.calls if c.method in {"POST", "PUT"} and "image" in (c.body or {})]
    return dict(call.body)


def problems(market: Market) -> str:
    with market.session() as session:
        return "\n".join(with_standing(session, plan_now(session)).problems)


def test_vast_starts_the_roles_image_with_an_ssh_server_for_the_fleets_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with described_market("vast", Vast(), tmp_path, monkeypatch) as market:
        body = created(market)
    assert body["image"] == IMAGE
    assert body["runtype"] == "ssh_direct"
    assert body["onstart"].startswith(f"key='{PUBLIC_KEY.strip()}'\n")
    assert len(body["onstart"]) <= MAX_START_CHARACTERS


def test_runpod_gets_the_same_as_the_arguments_of_the_images_entrypoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with described_market("runpod", Runpod(), tmp_path, monkeypatch) as market:
        body = created(market)
    assert body["image"] == IMAGE
    shell, option, text = shlex.split(body["args"])
    assert (shell, option) == ("sh", "-c")
    assert text.startswith(f"key='{PUBLIC_KEY.strip()}'\n")


def test_an_image_in_which_no_ssh_server_can_be_started_is_refused_before_it_is_rented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with described_market("runpod", Runpod(), tmp_path, monkeypatch) as market:
        assert f"that of {IMAGE} runs vLLM only: set versions.vllm_image" in problems(market)
        market.here.write(versions={"vllm_image": "example.com/vllm-with-a-shell:1"})
        assert "entrypoint" not in problems(market)


def test_nodes_that_cannot_reach_each_other_make_no_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with described_market("vast", Vast(), tmp_path, monkeypatch, network={"rdma": "off"}) as market:
        assert "nodes of vast cannot reach each other by private addresses" in problems(market)
