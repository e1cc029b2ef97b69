"""What ``vllm serve`` refuses before it serves."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.twin.serving import MTP, NIXL, Machines, both_connectors, machines_in, tilert_connector, until


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with machines_in(tmp_path) as started:
        yield started


TILERT = ("-tp", "8", "--kv-transfer-config", json.dumps(tilert_connector()))
CASES: dict[str, tuple[tuple[str, ...], dict[str, str], dict[str, Any], int, str]] = {
    "an unknown flag": (("--nope",), {}, {}, 2, "unrecognized arguments: --nope"),
    "an unknown cache type": (("--kv-cache-dtype", "fp7"), {}, {}, 2, "invalid choice: 'fp7'"),
    "JSON that is none": (("--kv-transfer-config", "{"), {}, {}, 2, "--kv-transfer-config"),
    "more ranks than GPUs": (
        ("-tp", "16"),
        {},
        {},
        1,
        "World size (16) is larger than the number of available GPUs (8)",
    ),
    "GPUs too small for the model": (("-tp", "8"), {}, {"gpu_model": "H100", "vram_gb": 80}, 1, "CUDA out of memory"),
    "GPUs older than Hopper": ((), {}, {"gpu_model": "A100", "vram_gb": 80}, 1, "No valid attention backend found"),
    "a context longer than the model's": (
        ("--max-model-len", "300000"),
        {},
        {},
        1,
        "User-specified max_model_len (300000) is greater than the derived max_model_len",
    ),
    "too few GPUs for the model": (("-tp", "4"), {}, {}, 1, "CUDA out of memory"),
    "an old driver": ((), {}, {"driver": "570.86.15"}, 1, "driver on your system is too old"),
    "a container without GPUs": ((), {"TWIN_GPUS": "0"}, {}, 1, "Failed to infer device type"),
    "a connector that does not exist": (
        ("--kv-transfer-config", '{"kv_connector":"NoConnector","kv_role":"kv_both"}'),
        {},
        {},
        1,
        "Unsupported connector type: NoConnector",
    ),
    "TileRT's connector without its module path": (
        ("--kv-transfer-config", '{"kv_connector":"TileRTConnector","kv_role":"kv_producer"}'),
        {},
        {},
        1,
        "Unsupported connector type: TileRTConnector",
    ),
    "an unknown role": (
        ("--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"producer"}'),
        {},
        {},
        1,
        "Unsupported kv_role",
    ),
    "TileRT without MTP": (TILERT, {}, {}, 1, "78 MLA layers (expected 79); check --speculative-config"),
    "many senders from host memory": (
        (*TILERT, *MTP),
        {"TILERT_PD_BUFFER_DEVICE": "cpu"},
        {},
        1,
        "host-resident staging buffer are mutually exclusive",
    ),
    "TileRT not installed": ((*TILERT, *MTP), {"TWIN_PACKAGES": "vllm==0.26.0,nixl==1.3.1"}, {}, 1, "'tilert'"),
    "mooncake not installed": (
        ("-tp", "8", *MTP, "--kv-transfer-config", both_connectors(tilert_transport="mooncake")),
        {"TWIN_PACKAGES": "vllm==0.26.0,nixl==1.3.1,tilert==0.1.6.post3"},
        {},
        1,
        "'mooncake'",
    ),
    "NIXL not installed": (
        ("-tp", "8", "--kv-transfer-config", json.dumps(NIXL)),
        {"TWIN_PACKAGES": "vllm==0.26.0"},
        {},
        1,
        "NIXL is not available",
    ),
    "a side channel on another node's address": (
        ("-tp", "8", "--kv-transfer-config", json.dumps(NIXL)),
        {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.77"},
        {},
        1,
        "Cannot assign requested address",
    ),
    "a probe address in brackets": (
        (*TILERT, *MTP),
        {"TILERT_PD_PROBE_ADDR": "[127.67.0.1]"},
        {},
        1,
        "gaierror",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_vllm_refuses(machines: Machines, case: str) -> None:
    argv, env, node, code, message = CASES[case]
    ended = machines.run("vllm_server", "serve", machines.model(), *argv, env=env, node=node)
    assert ended.returncode == code, ended.stderr
    assert message in ended.stderr


def test_a_model_that_is_not_mounted_does_not_exist(machines: Machines) -> None:
    ended = machines.run("vllm_server", "serve", machines.model(), env={"TWIN_MOUNTS": "/elsewhere"})
    assert ended.returncode == 1
    assert "is not a local folder" in ended.stderr


def test_a_port_in_use_ends_the_server(machines: Machines) -> None:
    address, root = machines.node()
    with socket.create_server((address, 8000)):
        server = machines.start("vllm_server", address, root, 8000, "serve", machines.model(), "-tp", "8")
        assert server.process.wait(30) == 1
    assert "Address already in use" in server.log


def test_a_server_answers_only_once_its_weights_are_loaded(machines: Machines) -> None:
    slow = machines.vllm(node={"pace": {"load_seconds": 500}})
    until(lambda: "50% Completed" in slow.log, "half of the weights loaded")
    assert not slow.healthy()
    assert slow.ready().get("/health").status_code == 200


def test_every_interface_is_the_address_of_the_node(machines: Machines) -> None:
    server = machines.vllm("--host", "0.0.0.0").ready()
    assert server.get("/version").json() == {"version": "0.26.0"}


def test_a_server_ends_at_once_when_told_to(machines: Machines) -> None:
    assert machines.vllm().ready().stop() != 0
