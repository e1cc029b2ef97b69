"""Counts that change while the fleet serves: by hand, by the schedule, by the budget, without a cut stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpufleet.ledger.lock import fleet_lock
from gpufleet.providers.mock import billing
from gpufleet.providers.mock.control import preempt
from tests.e2e.conftest import _network
from tests.e2e.world import BATCH_KEY, CHAT_KEY, World, free_port, small_fleet, world


@pytest.fixture(scope="module")
def scaled(short_folder: Callable[[], Path]) -> Iterator[World]:
    with world(short_folder(), _network(__name__), small_fleet(free_port())) as made:
        made.fleet["pools"]["native"]["count"] = 2
        made.write()
        made.ok("up", "--yes")
        yield made


def nodes(made: World) -> list[str]:
    return sorted(n["node"] for n in made.json("status")["nodes"] if n["serving"] == "ready")


def running(made: World) -> int:
    return sum(charge.ended is None for charge in billing.read(made.market))


class Callers:
    """Requests one after the other on each channel until told to stop; every one must be answered whole."""

    def __init__(self, made: World, each: int = 2) -> None:
        self.made, self.done, self.failures = made, threading.Event(), []
        self.answered = 0
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._ask, args=(key,)) for key in (CHAT_KEY, BATCH_KEY) for _ in range(each)
        ]

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.done.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, key: str) -> None:
        with httpx.Client(base_url=self.made.url, headers={"authorization": f"Bearer {key}"}, timeout=60) as client:
            while not self.done.is_set():
                self._once(client)

    def _once(self, client: httpx.Client) -> None:
        body = {
            "model": "glm5",
            "messages": [{"role": "user", "content": "count to a hundred please"}],
            "max_tokens": 100,
            "stream": True,
        }
        try:
            with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                text = answer.read().decode()
            if answer.status_code != 200 or "data: [DONE]" not in text:
                self.failures.append(f"{answer.status_code}: {text[-300:]}")
        except httpx.HTTPError as error:
            self.failures.append(repr(error))
        with self._lock:
            self.answered += 1


@contextmanager
def unharmed(made: World) -> Iterator[None]:
    """While callers ask without a break, nothing that happens here costs any of them an answer."""
    with Callers(made) as callers:
        yield
    assert callers.failures == []
    assert callers.answered > 0


def test_scaling_down_and_up_again_cuts_no_stream(scaled: World) -> None:
    before = running(scaled)
    with unharmed(scaled):
        scaled.ok("scale", "decode=1", "native=1", "prefill=1", "--yes")
    assert nodes(scaled) == ["decode/0", "native/0", "prefill/0"]
    assert running(scaled) == before - 3
    with unharmed(scaled):
        scaled.ok("scale", "prefill=2", "decode=2", "native=2", "--yes")
    assert len(nodes(scaled)) == 6


def test_one_router_of_the_native_pool_is_left(scaled: World) -> None:
    said = scaled.ok("exec", "native/0", "--", "docker ps --format '{{.Names}}'")
    assert said.count("vllm-router") == 1


def test_what_scale_asked_for_stays_until_the_file_says_otherwise(scaled: World) -> None:
    scaled.ok("down", "--pool", "native", "--keep", "1", "--yes")
    assert "native/1" not in nodes(scaled)
    plan = scaled.json("plan")
    assert not plan["changes"]
    assert "native: 1 as asked by gpufleet scale (the file says 2)" in scaled.ok("plan")
    scaled.ok("up", "--yes")
    assert "native/1" not in nodes(scaled)
    scaled.ok("tick")
    assert "native/1" not in nodes(scaled)
    scaled.ok("scale", "native=2", "--yes")
    assert "native/1" in nodes(scaled)


def test_down_of_a_pool_never_rents(scaled: World) -> None:
    done = scaled.run("down", "--pool", "native", "--keep", "7", "--yes")
    assert done.returncode == 2
    assert "down rents none" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["decode=3"], 3, "decode nodes need as many prefill nodes"),
        (["turbo=1"], 2, "there is no pool 'turbo'"),
        (["decode"], 2, "is not POOL=COUNT"),
        ([], 2, "at least one pool"),
    ],
)
def test_counts_that_cannot_be_are_refused_before_anything_changes(
    scaled: World, words: list[str], code: int, said: str
) -> None:
    done = scaled.run("scale", *words, "--yes")
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert len(nodes(scaled)) == 6


def test_a_hook_that_says_no_stops_the_run_before_anything_changes(scaled: World) -> None:
    folder = scaled.root / "hooks"
    folder.mkdir()
    hook = folder / "pre-up"
    hook.write_text('#!/bin/sh\necho "not today: $GPUFLEET_NODES"\nexit 1\n')
    hook.chmod(0o755)
    done = scaled.run("scale", "native=1", "--yes")
    hook.unlink()
    assert done.returncode == 1
    assert "not today: native/1" in done.stderr
    assert "the hook pre-up failed (exit 1)" in done.stderr
    assert len(nodes(scaled)) == 6
    assert not scaled.json("plan")["changes"]


def test_a_tick_with_nothing_to_do_says_nothing(scaled: World) -> None:
    done = scaled.run("tick")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert scaled.json("tick") == {"fleet": "test", "did": [], "warnings": []}


def test_a_tick_replaces_a_node_that_the_provider_took_back(scaled: World) -> None:
    lost = next(n["instance_id"] for n in scaled.json("status")["nodes"] if n["node"] == "native/1")
    preempt(scaled.market, lost)
    done = scaled.run("tick")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert "replace native/1: the provider says preempted" in done.stdout
    assert len(nodes(scaled)) == 6


def test_the_schedule_decides_once_a_window_opens(scaled: World) -> None:
    now = datetime.now(UTC)
    always: dict[str, Any] = {"name": "always", "from": "00:00", "to": "24:00", "counts": {"native": 1}}
    scaled.fleet["schedule"] = {"zone": "UTC", "windows": [always]}
    scaled.write()
    done = scaled.run("tick")
    assert "terminate native/1: not wanted any more" in done.stdout, done.stderr
    shown = scaled.json("schedule", "show")["changes"]
    assert shown[0]["windows"] == ["always"]
    assert shown[0]["counts"]["native"] == 1
    assert datetime.fromisoformat(shown[0]["at"]) >= now
    assert "always" in scaled.ok("schedule", "show")
    del scaled.fleet["schedule"]
    scaled.write()


def test_a_tick_beside_another_run_leaves_the_fleet_alone(scaled: World) -> None:
    with fleet_lock(scaled.state / "ledger.db", "test", command="up"):
        said = scaled.run("tick")
        assert (said.returncode, said.stdout, said.stderr) == (0, "", "")
        assert "`gpufleet up`" in scaled.json("tick")["busy"]


def test_a_budget_that_is_used_up_ends_the_fleet_for_good(scaled: World) -> None:
    scaled.fleet["budget"] = {"max_usd_total": 0.01}
    scaled.write()
    done = scaled.run("tick")
    assert done.returncode == 0, done.stderr
    assert "down: " in done.stdout
    assert "of budget.max_usd_total $0.01 are spent" in done.stdout
    assert running(scaled) == 0
    assert scaled.ok("tick") == ""
    assert running(scaled) == 0
    del scaled.fleet["budget"]
    scaled.write()
    refused = scaled.run("scale", "native=1", "--yes")
    assert refused.returncode == 2
    assert "test is not up" in refused.stderr
