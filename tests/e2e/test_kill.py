"""``kill -9`` anywhere, then the same command: same end, no second rental, equal bills, nothing left after down."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from decimal import Decimal

import pytest

from gpufleet.providers.mock import billing
from tests.e2e.conftest import _network
from tests.e2e.world import World, free_port, small_fleet, world

pytestmark = pytest.mark.spread


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[World]:
    """One cell and a native node, not up yet: every phase there is, in the least time."""
    fleet = small_fleet(free_port(), cells=1)
    with world(tmp_path_factory.mktemp("w"), _network(request.node.nodeid), fleet) as made:
        yield made


QUICK = {"rent", "check", "convert", "probe"}
"""Points of `up` that `make test` tries; `make test-slow` tries the others."""
UP_POINTS = [
    point if point in QUICK else pytest.param(point, marks=pytest.mark.slow)
    for point in ("rent", "boot", "connect", "check", "image", "weights", "convert", "serve", "cell", "router", "probe")
]
DOWN_POINTS = [
    pytest.param("terminate", 0, marks=pytest.mark.slow),
    pytest.param("terminate", 3, marks=pytest.mark.slow),
    pytest.param("router", 0, marks=pytest.mark.slow),
    ("confirm", 0),
    pytest.param("gone", 0, marks=pytest.mark.slow),
]


def _kill_at(world: World, mark: str, *command: str, lines: int = 0) -> bool:
    """Kill a command when its progress names ``mark``, or ``lines`` lines later; False: it ended before that."""
    process = world.start(*command)
    assert process.stderr is not None
    threading.Thread(target=process.stdout.read, daemon=True).start()  # type: ignore[union-attr]
    seen = -1
    for line in process.stderr:
        seen += 1 if seen >= 0 or mark in line else 0
        if seen >= lines:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            return True
    process.wait()
    return False


def _assert_one_rental_per_node(world: World) -> None:
    charges = [c for c in billing.read(world.market) if c.ended is None]
    assert len(charges) == 3
    assert {n["node"] for n in world.json("status")["nodes"]} == {"prefill/0", "decode/0", "native/0"}


def _assert_down_and_even(world: World) -> None:
    bill = world.json("down", "--yes")["bill"]
    charges = billing.read(world.market)
    assert all(c.ended is not None for c in charges)
    assert {line["instance_id"]: Decimal(line["usd"]) for line in bill["lines"]} == {
        c.instance_id: c.usd for c in charges
    }
    assert world.processes() == []


@pytest.mark.parametrize("point", UP_POINTS)
def test_up_killed_at(fresh: World, point: str) -> None:
    assert _kill_at(fresh, point, "up", "--yes")
    fresh.ok("up", "--yes")
    _assert_one_rental_per_node(fresh)
    assert fresh.json("ask", "--channel", "chat", "count to 3")["finish_reason"] == "stop"
    _assert_down_and_even(fresh)


@pytest.mark.parametrize(("point", "lines"), DOWN_POINTS)
def test_down_killed_at(fresh: World, point: str, lines: int) -> None:
    fresh.ok("up", "--yes")
    _kill_at(fresh, point, "down", "--yes", lines=lines)
    _assert_down_and_even(fresh)


def test_up_killed_and_then_down_leaves_nothing(fresh: World) -> None:
    assert _kill_at(fresh, "convert", "up", "--yes")
    _assert_down_and_even(fresh)
