"""Who feeds whom, as gated prefill nodes come, die and go: cells follow, old routers end, callers get answers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from gpufleet.providers.mock import lifecycle
from gpufleet.providers.mock.market import document
from tests.e2e.conftest import _network
from tests.e2e.small import assert_down_and_even, fault
from tests.e2e.test_gate import ask_many, gated_fleet
from tests.e2e.world import CHAT_KEY, World, eventually, world


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One gated prefill node, three decode nodes, nothing else; up."""
    with world(tmp_path_factory.mktemp("w"), _network(__name__), interactive_fleet(prefill=1, decode=3)) as made:
        made.ok("up", "--yes")
        yield made


def interactive_fleet(*, prefill: int, decode: int, **provider: object) -> dict[str, Any]:
    made = gated_fleet(prefill=prefill, decode=decode, **provider)
    del made["pools"]["native"], made["router"]["channels"]["batch"]
    made["router"]["without_max_tokens"] = "tilert"
    return made


def resize(made: World, prefill: int) -> None:
    made.fleet["pools"]["prefill"]["count"] = prefill
    made.write()


def services(made: World, node: str) -> set[str]:
    """What runs on a node."""
    told = made.ok("exec", "fleet.yaml", node, "--", "docker ps --format '{{.Names}}'")
    return {word for word in told.split() if word.startswith("gf-test-")}


def assert_all_cells_answer(made: World, decode: int = 3) -> None:
    answers = ask_many(made, 4 * decode)
    assert {what for _, what in answers} == {"own"}
    assert {by for by, _ in answers} == {f"cell-decode-{i}" for i in range(decode)}


def ask_for_long(made: World) -> str:
    """A stream that goes on for seconds: ``whole``, or what came last."""
    body = {"model": "glm5", "messages": [{"role": "user", "content": "count to 900"}], "max_tokens": 5000}
    headers = {"authorization": f"Bearer {CHAT_KEY}"}
    reply = httpx.post(f"{made.url}/v1/chat/completions", json=body, headers=headers, timeout=120)
    said = reply.json()["choices"][0]["message"]["content"] if reply.status_code == 200 else reply.text
    return "whole" if said == " ".join(map(str, range(1, 901))) else said[-200:]


def feeders(made: World) -> dict[str, str]:
    return {cell["nodes"][0]: cell["nodes"][1] for cell in made.json("status")["cells"]}


def lose(made: World, node: str) -> None:
    """The provider takes a node back."""
    lost = {n["node"]: n["instance_id"] for n in made.json("status")["nodes"]}[node]
    memory = document(made.market.resolve())
    with memory.locked() as market:
        market.rentals[lost].terminate_at, market.rentals[lost].terminating_seconds = datetime.now(UTC), 0.0
        assert lifecycle.ends_at(market.rentals[lost])
        memory.save(market)
    eventually(lambda: lost not in running_ids(made), what=f"{node} is gone")


def running_ids(made: World) -> set[str]:
    return {n["instance_id"] for n in made.json("status")["nodes"] if n["state"] == "running"}


def all_routers_stand_on_the_one_prefill_node(fleet: World) -> None:
    routers = {f"gf-test-router-decode-{i}" for i in range(3)}
    assert services(fleet, "prefill/0") == {"gf-test-prefill-0", "gf-test-gate", *routers}
    assert_all_cells_answer(fleet)


def another_prefill_node_takes_over_its_share_and_the_old_router_is_ended(fleet: World) -> None:
    resize(fleet, 2)
    moved = {a["node"]: a["changes"] for a in fleet.json("plan")["actions"] if a["kind"] == "update"}
    assert moved == {"decode/1": [{"field": "cell.prefill", "before": "prefill/0", "after": "prefill/1"}]}
    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(ask_for_long, fleet) for _ in range(3)]
        eventually(lambda: sum(c["active"] or 0 for c in fleet.json("status")["cells"]) == 3, what="three streams")
        fleet.ok("up", "--yes")
        assert {stream.result() for stream in running} == {"whole"}
    assert "gf-test-router-decode-1" not in services(fleet, "prefill/0")
    assert services(fleet, "prefill/1") == {"gf-test-prefill-1", "gf-test-gate", "gf-test-router-decode-1"}
    assert feeders(fleet) == {"decode/0": "prefill/0", "decode/1": "prefill/1", "decode/2": "prefill/0"}
    assert_all_cells_answer(fleet)


def a_prefill_node_that_is_lost_costs_only_its_own_cells_until_it_is_replaced(fleet: World) -> None:
    lose(fleet, "prefill/1")
    down = lambda: [c["name"] for c in fleet.json("status")["cells"] if c["up"] is False] == ["cell-decode-1"]  # noqa: E731
    eventually(down, what="its cell is down")
    assert {by for by, _ in ask_many(fleet, 6)} == {"cell-decode-0", "cell-decode-2"}
    fleet.ok("up", "--yes")
    assert_all_cells_answer(fleet)


def its_decode_nodes_go_back_when_the_file_wants_it_no_more(fleet: World) -> None:
    resize(fleet, 1)
    fleet.ok("up", "--yes")
    assert feeders(fleet) == {f"decode/{i}": "prefill/0" for i in range(3)}
    assert_all_cells_answer(fleet)
    assert fleet.run("up", "--yes").stderr.startswith("nothing to change")


def the_router_of_a_decode_node_that_ends_is_ended_too(fleet: World) -> None:
    fleet.fleet["pools"]["decode"]["count"] = 1
    resize(fleet, 1)
    fleet.ok("up", "--yes")
    assert services(fleet, "prefill/0") == {"gf-test-prefill-0", "gf-test-gate", "gf-test-router-decode-0"}
    assert_all_cells_answer(fleet, decode=1)


def a_gate_that_the_file_wants_no_more_is_ended(fleet: World) -> None:
    del fleet.fleet["pools"]["prefill"]["gate"]
    fleet.write()
    fleet.ok("up", "--yes")
    assert services(fleet, "prefill/0") == {"gf-test-prefill-0", "gf-test-router-decode-0"}
    assert_all_cells_answer(fleet, decode=1)


def down_leaves_nothing(fleet: World) -> None:
    assert_down_and_even(fleet)


def test_cells_follow_their_prefill_nodes(fleet: World) -> None:
    """One fleet's life, step by step."""
    all_routers_stand_on_the_one_prefill_node(fleet)
    another_prefill_node_takes_over_its_share_and_the_old_router_is_ended(fleet)
    a_prefill_node_that_is_lost_costs_only_its_own_cells_until_it_is_replaced(fleet)
    its_decode_nodes_go_back_when_the_file_wants_it_no_more(fleet)
    the_router_of_a_decode_node_that_ends_is_ended_too(fleet)
    a_gate_that_the_file_wants_no_more_is_ended(fleet)
    down_leaves_nothing(fleet)


@pytest.mark.slow
def test_decode_nodes_of_a_prefill_node_that_cannot_be_had_are_fed_by_the_others(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    spec = interactive_fleet(prefill=2, decode=2, faults=[fault("create", "quota", "prefill/1", times=1)])
    with world(tmp_path_factory.mktemp("w"), _network("orphans"), spec) as made:
        done = made.run("up", "--yes")
        assert done.returncode == 4, done.stderr
        assert feeders(made) == {"decode/0": "prefill/0", "decode/1": "prefill/0"}
        assert_all_cells_answer(made, decode=2)
        made.ok("up", "--yes")
        assert feeders(made) == {"decode/0": "prefill/0", "decode/1": "prefill/1"}
        assert_all_cells_answer(made, decode=2)
        assert_down_and_even(made)
