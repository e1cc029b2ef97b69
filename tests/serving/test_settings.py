"""What counts as a change of a node, and what a cell's two ends must agree on."""

from __future__ import annotations

from typing import Any

import pytest

from gpufleet.domain.nodes import NodeName
from gpufleet.serving.expect import hello_expectations
from gpufleet.serving.settings import node_settings
from tests.serving.fleets import fleet

DECODE = NodeName("decode", 0)


def changed(overlay: dict[str, Any], node: NodeName = DECODE) -> set[str]:
    before, after = node_settings(fleet(), node), node_settings(fleet(overlay), node)
    return {field for field in before.keys() | after.keys() if before.get(field) != after.get(field)}


@pytest.mark.parametrize(
    ("overlay", "fields"),
    [
        ({"model": {"max_seq_len": 65536}}, {"engine.max_seq_len"}),
        ({"pools": {"decode": {"gpu": "B300:8"}}}, {"gpu"}),
        ({"pools": {"decode": {"engine": {"decode_poll_ms": 0}}}}, {"engine.decode_poll_ms"}),
        ({"pools": {"decode": {"engine": {"env": {"GLM5_AR_N": "4"}}}}}, {"engine.env.GLM5_AR_N"}),
        ({"versions": {"tilert": "0.1.7"}}, {"versions.tilert", "image.tag"}),
        ({"provider": "ssh"}, {"provider"}),
        ({"network": {"devices": "mlx5_0:1"}}, {"network.devices"}),
    ],
)
def test_each_change_shows_under_its_own_name(overlay: dict[str, Any], fields: set[str]) -> None:
    assert changed(overlay) == fields


@pytest.mark.parametrize(
    "overlay",
    [
        {"budget": {"max_usd_per_hour": 900}},
        {"router": {"listen": "127.0.0.1:9000"}},
        {"pools": {"decode": {"max_usd_per_hour": 50}}},
        {"pools": {"decode": {"count": 1}}},
        {"versions": {"vllm": "0.27.0"}},
    ],
)
def test_what_does_not_run_on_a_node_does_not_change_it(overlay: dict[str, Any]) -> None:
    assert changed(overlay) == set()


def test_the_hello_must_say_what_the_prefill_node_will_demand() -> None:
    assert hello_expectations(fleet(), DECODE) == {
        "GF_PEER_PORT": "5556",
        "GF_EXPECT_PROTOCOL": "2",
        "GF_EXPECT_LAYOUT": "10",
        "GF_EXPECT_TRANSPORT": "nixl",
        "GF_EXPECT_SENDERS": "8",
        "GF_EXPECT_MAX_SEQ_LEN": "202752",
    }


@pytest.mark.parametrize(
    ("engine", "layout"),
    [
        ({}, "10"),
        ({"kv_cache_dtype": "bf16"}, "50"),
        ({"mtp": False}, "1010"),
        ({"kv_cache_dtype": "bf16", "mtp": False}, "1050"),
    ],
)
def test_the_layout_number_follows_dtype_and_mtp(engine: dict[str, Any], layout: str) -> None:
    spec = fleet({"pools": {"prefill": {"engine": engine}}})
    assert hello_expectations(spec, DECODE)["GF_EXPECT_LAYOUT"] == layout
