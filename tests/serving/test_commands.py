"""Every launch command, word for word: one data file per case in ``cases/``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpufleet.domain.nodes import NodeName
from gpufleet.serving import commands, gate
from gpufleet.serving.launch import Launch
from tests.serving.fleets import fleet, topology

CASES = sorted(Path(__file__).with_name("cases").glob("*.yaml"))
PATHS = commands.Paths(model_dir="/gf/weights/GLM", converted_dir="/gf/weights/GLM-TileRT")


def render(case: dict[str, Any]) -> Launch:
    spec = fleet(case.get("fleet"))
    nodes = topology(spec)
    if case["launch"] == "vllm-router":
        return commands.vllm_router_launch(spec, nodes, PATHS)
    if case["launch"] == "gate":
        launch = gate.gate_launch(spec, nodes, NodeName.parse(case["node"]), "/gf/gate")
        return replace(launch, argv=tuple(w.replace(gate.program_path("/gf/gate"), "PROGRAM") for w in launch.argv))
    if case["launch"] == "pd-router":
        return commands.pd_router_launch(spec, nodes.cells[case["cell"]], PATHS)
    build = {
        "decode": commands.decode_launch,
        "prefill": commands.prefill_launch,
        "native": commands.native_launch,
    }[case["launch"]]
    return build(spec, nodes, NodeName.parse(case["node"]), PATHS)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_command_is_exactly(path: Path) -> None:
    case = yaml.safe_load(path.read_text(encoding="utf-8"))
    launch = render(case)
    expected = case["expect"]
    assert list(launch.argv) == [word for line in expected["argv"] for word in _words(line)]
    assert dict(launch.env) == expected["env"]
    assert launch.health_url == expected["health"]
    assert launch.name == expected["name"]


def test_there_is_a_case_for_every_program() -> None:
    launched = {yaml.safe_load(path.read_text(encoding="utf-8"))["launch"] for path in CASES}
    assert launched == {"decode", "prefill", "native", "gate", "pd-router", "vllm-router"}


def test_a_fleet_without_native_nodes_has_no_vllm_router() -> None:
    spec = fleet({"pools": {"native": None}})
    with pytest.raises(ValueError, match="no vllm-router"):
        commands.vllm_router_launch(spec, topology(spec), PATHS)


def test_what_the_user_sets_on_a_pool_comes_last() -> None:
    spec = fleet({"pools": {"prefill": {"engine": {"extra_args": ["--seed", "7"], "env": {"UCX_TLS": "all"}}}}})
    launch = commands.prefill_launch(spec, topology(spec), NodeName("prefill", 0), PATHS)
    assert launch.argv[-2:] == ("--seed", "7")
    assert launch.env["UCX_TLS"] == "all"


def test_no_launch_carries_a_secret() -> None:
    spec = fleet({"model": {"hf_token": "env:HF_TOKEN"}})
    nodes = topology(spec)
    for node in spec.nodes():
        case = {"launch": str(spec.role_of(node.pool)), "node": str(node), "fleet": {"model": {"hf_token": "env:X"}}}
        assert "TOKEN" not in repr(render(case))
    assert "TOKEN" not in repr(commands.vllm_router_launch(spec, nodes, PATHS))


def _words(line: str | list[str]) -> list[str]:
    """A line of words; a list where a word holds spaces or JSON."""
    return line if isinstance(line, list) else line.split()
