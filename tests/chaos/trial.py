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

from gpufleet.engine.session import Session, now
from gpufleet.errors import GpufleetError
from gpufleet.ledger.costs import bill
from gpufleet.providers.mock import billing
from tests.chaos import commands
from tests.chaos.points import CRASHED, Points, in_a_child, watch
from tests.engine.market import Place, place

SCENARIOS = ("up", "scale", "down")
_BEFORE = {"prefill": 2, "native": 1}
_AFTER = {"prefill": 1, "native": 2}
_MORE = {"prefill": 2, "native": 2}
"""In place of `_AFTER` where nodes may be a cluster's, which ends as a whole."""
_TRIES = 12
_MARKETS: tuple[dict[str, Any], ...] = (
    {},
    {"clusters": True},
    {"volumes": True, "ssh_keys": True},
    {"clusters": True, "volumes": True, "ssh_keys": True},
)
"""What the market can do, by the seed."""
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
    {"at": "whoami", "kind": "transient", "times": 2},
    {"at": "offers", "kind": "429", "times": 2, "retry_after": 0.01},
    {"at": "inventory", "kind": "duplicate", "times": 3},
    {"at": "get", "kind": "lag"},
    {"at": "create", "kind": "id-in-error"},
)
_OF_CLUSTERS: tuple[dict[str, Any], ...] = (
    {"at": "clusters", "kind": "transient", "times": 2},
    {"at": "clusters", "kind": "partial", "times": 2},
    {"at": "clusters", "kind": "empty", "times": 2},
    {"at": "clusters", "kind": "429", "times": 2, "retry_after": 0.01},
)
_OF_EXTRAS: tuple[dict[str, Any], ...] = (
    {"at": "create", "kind": "volume-left"},
    {"at": "extras", "kind": "transient", "times": 2},
    {"at": "extras", "kind": "partial", "times": 2},
    {"at": "delete", "kind": "error-500", "times": 2},
    {"at": "delete", "kind": "ignored", "times": 2},
    {"at": "delete", "kind": "not-yet", "times": 2},
    {"at": "keys", "kind": "lost-answer"},
    {"at": "keys", "kind": "transient", "times": 2},
)


def faults_of(seed: int) -> list[dict[str, Any]]:
    """Four faults, and as many again of what this market can do beside; drawn by the seed, of which 0 has none."""
    drawn = random.Random(seed)
    able = options_of(seed)
    chosen = drawn.sample(_FAULTS, 4) if seed else []
    chosen += drawn.sample(_OF_CLUSTERS, 2) if seed and "clusters" in able else []
    chosen += drawn.sample(_OF_EXTRAS, 3) if seed and "volumes" in able else []
    return [{**fault, "chance": drawn.choice([0.3, 0.6, 1])} for fault in chosen]


def options_of(seed: int) -> dict[str, Any]:
    """The kind of market that a seed plays on."""
    return _MARKETS[seed % len(_MARKETS)]


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


def play(trial: Trial, ledger: str | None = None) -> int:
    """Play it; returns how many points the command has (0 when it was killed).

    Args:
        ledger: URL of an empty PostgreSQL database; None for SQLite.

    Raises:
        AssertionError: something is leaked, rented twice or billed otherwise than the market bills it.
    """
    with _market(trial.seed) as here:
        counts = _MORE if "clusters" in options_of(trial.seed) else _AFTER
        stage = _Stage(here, counts, ledger)
        if trial.scenario != "up":
            stage.to_the_end("up")
        counted = stage.run(trial.scenario, Points(trial.point, trial.after))
        if trial.point == 0:
            return counted
        stage.to_the_end(trial.scenario)
        if trial.scenario != "down":
            stage.assert_one_rental_per_node(_BEFORE if trial.scenario == "up" else counts)
            stage.to_the_end("down")
        stage.assert_nothing_left()
        return 0


@contextmanager
def _market(seed: int) -> Iterator[Place]:
    root = Path(tempfile.mkdtemp(prefix="gf-chaos-"))
    try:
        with place(root, *faults_of(seed), seed=seed, time_scale=20_000, **options_of(seed)) as here:
            here.write(pools={pool: {"gpu": "H200:8", "count": count} for pool, count in _BEFORE.items()})
            yield here
    finally:
        shutil.rmtree(root, ignore_errors=True)


@dataclass(frozen=True)
class _Stage:
    """One market and one ledger, and the commands that are run on them."""

    here: Place
    counts: dict[str, int]
    ledger: str | None

    def run(self, command: str, points: Points) -> int:
        """Run a command in a process of its own. Returns the points it passed (at most 250), or 255 when it failed."""

        def work() -> int:
            with pytest.MonkeyPatch.context() as patch:
                if self.ledger:
                    patch.setenv("GPUFLEET_LEDGER", self.ledger)
                with self.here.session() as session:
                    commands.leave_nodes_alone(patch)
                    watch(session, points, patch)
                    try:
                        self._do(command, session)
                    except GpufleetError as failure:
                        self._note(failure)
                        return 255
            return min(points.seen, 250)

        return in_a_child(work)

    def _do(self, command: str, session: Session) -> None:
        if command == "up":
            commands.bring_up(session)
        elif command == "scale":
            commands.scale(session, self.counts)
        else:
            commands.take_down(session)

    def _note(self, failure: GpufleetError) -> None:
        with (self.here.root / "failures").open("a") as file:
            file.write(f"{type(failure).__name__}: {failure.message}\n")

    def to_the_end(self, command: str) -> None:
        """As a user would: run it again until it says that all is well."""
        for _ in range(_TRIES):
            code = self.run(command, Points())
            assert code != CRASHED, "the command crashed"
            if code not in {255, -9}:
                return
        told = (self.here.root / "failures").read_text()
        raise AssertionError(f"{command} did not come to its end in {_TRIES} runs:\n{told}")

    @contextmanager
    def _ledger(self) -> Iterator[Session]:
        with pytest.MonkeyPatch.context() as patch:
            if self.ledger:
                patch.setenv("GPUFLEET_LEDGER", self.ledger)
            with self.here.session() as session:
                yield session

    def assert_one_rental_per_node(self, counts: dict[str, int]) -> None:
        with self._ledger() as session:
            live = session.store.rentals("test")
        running = {charge.instance_id for charge in self.here.running()}
        assert {r.instance_id for r in live} == running, "the market bills for what is in no record, or the reverse"
        wanted = sorted(f"{pool}/{index}" for pool, count in counts.items() for index in range(count))
        assert sorted(str(r.node) for r in live) == wanted, "a node is missing or rented twice"

    def assert_nothing_left(self) -> None:
        assert self.here.running() == [], "leaked"
        disks = billing.volumes(self.here.root / "market")
        assert [disk for disk in disks if disk.ended is None] == [], "a disk is leaked"
        with self._ledger() as session:
            assert session.store.open_obligations() == []
            assert session.store.open_intents("test") == []
            ours = {line.instance_id: line.usd for line in bill(session.store, "test", now()).lines}
        assert ours == {charge.instance_id: charge.usd for charge in self.here.charges()}, "the bills differ"
