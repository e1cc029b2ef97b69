"""The market's faults against the real command line: the fleet comes up all the same, or says why; bills agree.

What a fault does to one rental is tested in tests/engine; here is what it does to a whole run.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from gpufleet.providers.mock import billing
from gpufleet.providers.mock.control import stop_all
from tests.e2e.conftest import _network
from tests.e2e.small import assert_down_and_even, fault, running, small
from tests.e2e.world import World, eventually

PREFILL, NATIVE = "prefill/0", "native/0"
Place = tuple[Path, str]


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Place:
    """A folder with a short name, and a loopback network."""
    return tmp_path_factory.mktemp("w"), _network(request.node.nodeid)


def _nodes(made: World) -> Counter[str]:
    return Counter(charge.node for charge in running(made))


def test_refusals_and_lost_answers_on_the_way_up_and_down(place: Place) -> None:
    faults = [
        fault("offers", "transient"),
        fault("create", "429", PREFILL, retry_after=0.05),
        fault("create", "double", NATIVE),
        fault("inventory", "transient", times=2),
        fault("inventory", "empty"),
        fault("get", "unknown-state"),
        fault("terminate", "error-500"),
        fault("terminate", "ok-but-running"),
    ]
    with small(*place, *faults) as made:
        made.ok("up", "--yes")
        assert _nodes(made) == {PREFILL: 1, NATIVE: 1}
        assert made.json("ask", "count to 3")["served_by"] == "native"
        assert_down_and_even(made)
        assert Counter(charge.node for charge in billing.read(made.market)) == {PREFILL: 1, NATIVE: 2}


@pytest.mark.parametrize("kind", ["capacity", "payment"])
def test_what_the_first_provider_refuses_is_rented_at_the_next(place: Place, kind: str) -> None:
    refuse_all = fault("create", kind, times=99)
    with small(*place, refuse_all) as made:
        second = made.state / "second"
        (made.root / "providers").mkdir()
        (made.root / "providers" / "second.yaml").write_text("kind: mock\n")
        clock = {"time_scale": 20000, "seed": 1}
        made.fleet["fallback_providers"] = [
            {"use": "second", "directory": str(second), "network": _network(f"{made.root} second"), **clock}
        ]
        made.write()
        try:
            done = made.run("up", "--yes")
            assert done.returncode == 0, done.stderr
            assert "going on at second us-east" in done.stderr
            assert {node["provider"] for node in made.json("status")["nodes"]} == {"second"}
            assert billing.read(made.market) == []
            made.ok("down", "--yes")
            assert [charge.ended is None for charge in billing.read(second)] == [False, False]
        finally:
            stop_all(second)


@pytest.mark.parametrize(
    ("kind", "told"),
    [("quota", "limit of nodes"), ("payment", "balance"), ("auth", "account")],
)
def test_a_refusal_for_one_node_is_told_and_leaves_nothing_untracked(place: Place, kind: str, told: str) -> None:
    with small(*place, fault("create", kind, NATIVE)) as made:
        done = made.run("up", "--yes")
        assert done.returncode == 4, done.stderr
        assert told in done.stderr
        assert "Traceback" not in done.stderr
        assert {n["node"] for n in made.json("status")["nodes"]} == {charge.node for charge in running(made)}
        assert_down_and_even(made)


@pytest.mark.report("terraform-provider-opentelekomcloud 3480", "skypilot 7336", "runtime 26")
@pytest.mark.parametrize(("first", "second"), [("bad-gpu", "old-driver"), ("small-disk", "slow"), ("dead", "never")])
def test_a_node_that_boots_badly_is_ended_at_once_and_another_one_rented(place: Place, first: str, second: str) -> None:
    faults = [fault("boot", first, PREFILL), fault("boot", second, NATIVE)]
    with small(*place, *faults) as made:
        made.ok("up", "--yes")
        assert _nodes(made) == {PREFILL: 1, NATIVE: 1}
        assert_down_and_even(made)
        again = 1 if second == "slow" else 2
        assert Counter(charge.node for charge in billing.read(made.market)) == {PREFILL: 2, NATIVE: again}


@pytest.mark.report("image-ubuntu 139")
def test_another_host_key_is_refused_with_what_to_do(place: Place) -> None:
    with small(*place, fault("boot", "host-key-change", NATIVE)) as made:
        done = made.run("up", "--yes")
        assert done.returncode == 5, done.stderr
        assert "host key" in done.stderr
        assert f"gpufleet down {made.file.name}" in done.stderr.replace(str(made.root) + "/", "")
        assert_down_and_even(made)


@pytest.mark.report("skypilot 6856", "skypilot 1468")
def test_a_node_taken_back_while_it_comes_up_is_told_at_once_and_replaced(place: Place) -> None:
    with small(*place, fault("run", "preemption", NATIVE, after=3000)) as made:
        done = made.run("up", "--yes")
        if done.returncode:
            assert done.returncode == 5, done.stderr
            assert "preempted" in done.stderr
        eventually(lambda: "replace" in {a["kind"] for a in made.json("plan")["actions"]}, what="a plan to replace it")
        made.ok("up", "--yes")
        assert _nodes(made) == {PREFILL: 1, NATIVE: 1}
        assert_down_and_even(made)


def test_what_the_file_no_longer_wants_ends_and_what_it_wants_differently_is_replaced(place: Place) -> None:
    with small(*place) as made:
        made.fleet["pools"]["extra"] = {"role": "native", "gpu": "H200:8", "count": 1}
        made.write()
        made.ok("up", "--yes")
        del made.fleet["pools"]["extra"]
        made.fleet["pools"]["native"]["gpu"] = "B200:8"
        made.write()
        made.ok("up", "--yes")
        assert {(c.node, c.usd_per_hour) for c in running(made)} == {(PREFILL, 28), (NATIVE, 44)}
        assert made.json("ask", "count to 3")["served_by"] == "native"
        made.file.write_text("pools: [")
        assert [n["node"] for n in made.json("status")["nodes"]] == [PREFILL, NATIVE]
        assert_down_and_even(made)
