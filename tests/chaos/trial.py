"""One trial: a command killed at one point on a market with faults, the same command again, both ledgers compared."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpufleet.engine.session import now
from gpufleet.errors import GpufleetError
from gpufleet.ledger.costs import bill
from tests.chaos import commands
from tests.chaos.points import Points, in_a_child, watch
from tests.engine.market import Place, place

SCENARIOS = ("up", "scale", "down")
_BEFORE = {"prefill": 2, "native": 1}
_AFTER = {"prefill": 1, "native": 2}
_TRIES = 12
_FAULTS: tuple[dict[str, Any], ...] = (
    {"at": "create", "kind": "lost-answer"},
    {"at": "create", "kind": "error-500"},
    {"at": "create", "kind": "error-500-after-create"},
    {"at": "create", "kind": "double"},
    {"at": "create", "kind": "429", "times": 3, "retry_after": 0.01},
    {"at": "create", "kind": "429"},
    {"at": "create", "kind": "capacity"},
    {"at": "create", "kind": "not-sent"},
    {"at": "inventory", "kind": "lag", "times": 2},
    {"at": "inventory", "kind": "partial", "times": 2},
    {"at": "inventory", "kind": "empty", "times": 2},
    {"at": "inventory", "kind": "transient", "times": 2},
    {"at": "inventory", "kind": "429", "times": 4, "retry_after": 0.01},
    {"at": "get", "kind": "transient", "times": 2},
    {"at": "get", "kind": "429", "times": 2, "retry_after": 0.01},
    {"at": "terminate", "kind": "error-500", "times": 2},
    {"at": "terminate", "kind": "429", "times": 2, "retry_after": 0.01},
    {"at": "terminate", "kind": "ok-but-running", "after": 60},
    {"at": "terminate", "kind": "ignored", "times": 2},
    {"at": "terminate", "kind": "not-yet", "times": 2},
)


def faults_of(seed: int) -> list[dict[str, Any]]:
    """Four faults, drawn by the seed; seed 0 has none."""
    drawn = random.Random(seed)
    chosen = drawn.sample(_FAULTS, 4) if seed else []
    return [{**fault, "chance": drawn.choice([0.3, 0.6, 1])} for fault in chosen]


@dataclass(frozen=True)
class Trial:
    scenario: str
    seed: int
    point: int = 0
    """0: not killed; the points are counted."""
    after: bool = False

    @property
    def command(self) -> str:
        """The command line that plays this trial again."""
        when = " --after" if self.after else ""
        return f"python -m tests.chaos --scenario {self.scenario} --seed {self.seed} --point {self.point}{when}"


def play(trial: Trial) -> int:
    """Play it; returns how many points the command has (0 when it was killed).

    Raises:
        AssertionError: something is leaked, rented twice or billed otherwise than the market bills it.
    """
    with _market(trial.seed) as here:
        if trial.scenario != "up":
            _to_the_end(here, "up")
        if trial.scenario == "scale":
            _write(here, _AFTER)
        command = "down" if trial.scenario == "down" else "up"
        points = Points(trial.point, trial.after)
        counted = _run(here, command, points)
        if trial.point == 0:
            return counted
        _to_the_end(here, command)
        if command == "up":
            _assert_one_rental_per_node(here)
            _to_the_end(here, "down")
        _assert_nothing_left(here)
        return 0


@contextmanager
def _market(seed: int) -> Iterator[Place]:
    root = Path(tempfile.mkdtemp(prefix="gf-chaos-"))
    try:
        with place(root, *faults_of(seed), seed=seed, time_scale=20_000) as here:
            _write(here, _BEFORE)
            yield here
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _write(here: Place, counts: dict[str, int]) -> None:
    here.write(pools={pool: {"gpu": "H200:8", "count": count} for pool, count in counts.items()})


def _run(here: Place, command: str, points: Points) -> int:
    """Run a command in a process of its own. Returns the points it passed (at most 250)."""

    def work() -> int:
        with pytest.MonkeyPatch.context() as patch, here.session() as session:
            watch(session, points, patch)
            try:
                getattr(commands, command)(session)
            except GpufleetError:
                return 255
            return min(points.seen, 250)

    return in_a_child(work)


def _to_the_end(here: Place, command: str) -> None:
    """As a user would: run it again until it says that all is well."""
    for _ in range(_TRIES):
        code = _run(here, command, Points())
        assert code != 70, "the command crashed"
        if code not in {255, -9}:
            return
    raise AssertionError(f"{command} did not come to its end in {_TRIES} runs")


def _assert_one_rental_per_node(here: Place) -> None:
    with here.session() as session:
        live = session.store.rentals("test")
        wanted = {str(node) for node in session.fleet.nodes()}
    running = {charge.instance_id for charge in here.running()}
    assert {r.instance_id for r in live} == running, "the market bills for what is in no record, or the reverse"
    assert sorted(str(r.node) for r in live) == sorted(wanted), "a node is missing or rented twice"


def _assert_nothing_left(here: Place) -> None:
    assert here.running() == [], "leaked"
    with here.session() as session:
        assert session.store.open_obligations() == []
        assert session.store.open_intents("test") == []
        ours = {line.instance_id: line.usd for line in bill(session.store, "test", now()).lines}
    assert ours == {charge.instance_id: charge.usd for charge in here.charges()}, "the bills differ"
