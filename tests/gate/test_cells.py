"""Whole cells of stand-ins: one prefill node, several decode nodes, a pd_router each, and the gate between."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gate.machines import start_gate, state_of
from tests.twin.serving import Machines, Server, machines_in, text_of, until

NODES = 3


class Fleet:
    """One prefill node with its gate, and ``NODES`` cells."""

    def __init__(self, machines: Machines, *argv: object, tps: float = 20000, nodes: int = NODES) -> None:
        self.machines = machines
        self.prefill = machines.prefill(node={"pace": {"prefill_tps": tps}})
        self.decodes = [machines.decode(node={"pace": {"decode_tps": 1e5}}) for _ in range(nodes)]
        for server in (self.prefill, *self.decodes):
            server.ready()
        self.gate = start_gate(machines, self.prefill, *argv).ready()
        self.routers = [machines.pd_router(self.gate, decode) for decode in self.decodes]
        for router in self.routers:
            router.ready()

    def metric(self, start: str) -> float:
        """The sum of the gate's samples that begin so."""
        rows = self.gate.get("/gate/metrics").text.splitlines()
        return sum(float(row.rsplit(" ", 1)[1]) for row in rows if row.startswith(start))


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with machines_in(tmp_path) as started:
        yield started


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """For the tests that leave it as it was."""
    with machines_in(tmp_path_factory.mktemp("fleet")) as started:
        yield Fleet(started)


def question(number: int) -> str:
    return " ".join([f"question-{number}"] * (20 + 7 * number % 60))


def outcome(router: Server, number: int, **extra: Any) -> str:
    """``own``, ``failed``, or ``mixed``: what came instead of the answer to this question."""
    try:
        reply = router.chat(question(number), max_tokens=2000, **extra)
    except httpx.TransportError:
        return "failed"
    if reply.status_code != 200:
        return "failed"
    said = reply.json()["choices"][0]["message"]["content"]
    return "own" if said == f"You said: {question(number)}" else "mixed"


def ask_all(routers: list[Server], each: int) -> list[str]:
    """Every router asked ``each`` questions, one after the other, beside the others."""

    def ask(router: Server, first: int) -> list[str]:
        return [outcome(router, first + number) for number in range(each)]

    with ThreadPoolExecutor(len(routers)) as pool:
        results = pool.map(ask, routers, range(0, each * len(routers), each))
    return list(itertools.chain.from_iterable(results))


def test_every_decode_node_gets_its_own_kv(fleet: Fleet) -> None:
    assert set(ask_all(fleet.routers, 12)) == {"own"}
    assert fleet.metric("gpufleet_gate_handovers_total") >= 12 * NODES
    assert fleet.metric("gpufleet_gate_tokens_total") > 0


def test_without_the_gate_the_same_requests_mix(fleet: Fleet) -> None:
    routers = [fleet.machines.pd_router(fleet.prefill, decode).ready() for decode in fleet.decodes]
    assert "mixed" in ask_all(routers, 12)


def test_streams_through_a_cell_are_whole(fleet: Fleet) -> None:
    assert text_of(fleet.routers[0].stream("word by word", max_tokens=100)) == "You said: word by word"


def test_native_requests_run_beside_hand_overs_in_any_number(fleet: Fleet) -> None:
    def native(number: int) -> bool:
        return fleet.gate.say(f"native {number}", max_tokens=20) == f"You said: native {number}"

    with ThreadPoolExecutor(64) as pool:
        both = pool.submit(ask_all, fleet.routers, 4)
        whole = list(pool.map(native, range(200)))
        assert set(both.result()) == {"own"}
    assert all(whole)


def test_everything_else_of_vllm_is_where_it_was(fleet: Fleet) -> None:
    assert fleet.gate.get("/v1/models").json() == fleet.prefill.get("/v1/models").json()
    assert "vllm:num_requests_running" in fleet.gate.get("/metrics").text
    assert fleet.gate.get("/nothing").status_code == 404
    assert (
        fleet.gate.post("/tokenize", {"prompt": "a b"}).json()
        == fleet.prefill.post("/tokenize", {"prompt": "a b"}).json()
    )


def test_a_decode_node_that_dies_fails_its_own_requests_only(machines: Machines) -> None:
    fleet = Fleet(machines, "--deadline-connect", "1")
    with ThreadPoolExecutor(NODES) as pool:
        running = [pool.submit(ask_all, [router], 12) for router in fleet.routers]
        until(lambda: fleet.metric("gpufleet_gate_handovers_total") > 6, "some have landed")
        fleet.decodes[0].process.kill()
        dead, *alive = [future.result() for future in running]
    assert "mixed" not in dead
    assert "failed" in dead
    assert {word for results in alive for word in results} == {"own"}


def test_a_killed_gate_fails_requests_visibly_and_a_new_one_never_mixes(machines: Machines) -> None:
    fleet = Fleet(machines, "--settle", "1", "--deadline-connect", "1", tps=3000)
    with ThreadPoolExecutor(NODES) as pool:
        running = [pool.submit(ask_all, [router], 8) for router in fleet.routers]
        until(state_of(machines, fleet.prefill).exists, "a hand-over runs")
        fleet.gate.process.kill()
        fleet.gate.process.wait()
        fleet.gate = start_gate(machines, fleet.prefill, "--settle", "1", "--deadline-connect", "1").ready()
        results = [word for future in running for word in future.result()]
    assert set(results) <= {"own", "failed"}
    until(lambda: fleet.gate.get("/gate/health").status_code == 200, "the new gate has settled")


def test_a_stopped_gate_lets_streams_end(machines: Machines) -> None:
    prefill = machines.prefill(node={"pace": {"native_tps": 100}}).ready()
    gate = start_gate(machines, prefill).ready()
    events = gate.events("to the very last word", max_tokens=50)
    first = next(events)
    gate.process.send_signal(signal.SIGTERM)
    assert text_of([first, *events]) == "You said: to the very last word"
    assert gate.process.wait(20) == 0


def test_a_gate_that_cannot_listen_says_so(machines: Machines) -> None:
    prefill = machines.prefill().ready()
    start_gate(machines, prefill).ready()
    second = start_gate(machines, prefill)
    assert second.process.wait(20) == 1
    assert "cannot listen" in second.log


def test_a_client_that_hangs_up_stops_its_native_request(machines: Machines) -> None:
    prefill = machines.prefill(node={"pace": {"native_tps": 50}}).ready()
    gate = start_gate(machines, prefill).ready()
    with suppress(StopIteration):
        events = gate.events("a long answer " * 50, max_tokens=1000)
        next(events)
        events.close()
    until(lambda: "Aborted request" in prefill.log, "vLLM noticed")
