"""A fleet whose only prefill node feeds three decode nodes, through the KV gate and, to see what it is for, past it."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from socket import create_connection, socket

import httpx
import pytest

from tests.e2e.conftest import _network
from tests.e2e.small import assert_down_and_even
from tests.e2e.world import CHAT_KEY, World, eventually, free_port, small_fleet, world

GATE = 8100
VLLM = 8000


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One gated prefill node, three decode nodes, a native one; up."""
    with world(tmp_path_factory.mktemp("w"), _network(__name__), gated_fleet(prefill=1, decode=3)) as made:
        made.ok("up", "--yes")
        yield made


def gated_fleet(*, prefill: int, decode: int, **provider: object) -> dict[str, object]:
    fleet = small_fleet(free_port(), **provider)
    fleet["pools"]["prefill"] |= {"count": prefill, "gate": "on"}
    fleet["pools"]["decode"] |= {"count": decode}
    fleet["router"]["spill_queue"] = 1000
    return fleet


def ask(made: World, number: int, *, words: int, max_tokens: int) -> tuple[str, str]:
    """Which cell answered, and whether ``own``, ``failed`` or ``foreign``: with the answer to another question."""
    question = " ".join([f"question-{number}"] * (words + 7 * number % words))
    body = {"model": "glm5", "messages": [{"role": "user", "content": question}], "max_tokens": max_tokens}
    headers = {"authorization": f"Bearer {CHAT_KEY}"}
    reply = httpx.post(f"{made.url}/v1/chat/completions", json=body, headers=headers, timeout=120)
    by = reply.headers.get("x-gpufleet-served-by", "")
    if reply.status_code != 200:
        return by, "failed"
    choice = reply.json()["choices"][0]
    said, whole = choice["message"]["content"], f"You said: {question}"
    own = said == whole if choice["finish_reason"] == "stop" else whole.startswith(said) and len(said) > 20
    return by, "own" if own else "foreign"


def ask_many(made: World, count: int, *, words: int = 30, max_tokens: int = 2000) -> list[tuple[str, str]]:
    """Three at a time."""
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(lambda number: ask(made, number, words=words, max_tokens=max_tokens), range(count)))


def ask_long(made: World, count: int) -> set[str]:
    """Long prompts, whose prefills meet, and short answers."""
    return {what for _, what in ask_many(made, count, words=1000, max_tokens=16)}


def address(made: World, node: str) -> str:
    return next(str(n["address"]) for n in made.json("status")["nodes"] if n["node"] == node)


@contextmanager
def past_the_gate(made: World) -> Iterator[None]:
    """In the gate's place a plain relay to vLLM: the same fleet, but for what the gate does."""
    host = address(made, "prefill/0")
    made.ok("exec", "fleet.yaml", "prefill/0", "--", "docker", "stop", "gf-test-gate")
    with Relay(host) as relay:
        threading.Thread(target=relay.serve_forever, daemon=True).start()
        yield
        relay.shutdown()
    made.ok("exec", "fleet.yaml", "prefill/0", "--", "docker", "start", "gf-test-gate")
    eventually(lambda: gate_is_up(made), what="the gate is back")
    eventually(lambda: set(cells(made).values()) == {True}, what="the cells are back")


def gate_is_up(made: World) -> bool:
    return all(gate["up"] for gate in made.json("status")["gates"])


def cells(made: World) -> dict[str, bool | None]:
    """Whether HAProxy finds each healthy."""
    return {cell["name"]: cell["up"] for cell in made.json("status")["cells"] if cell["name"] != "native"}


class Relay(socketserver.ThreadingTCPServer):
    """Bytes to and from vLLM; answers the gate's health check, so that HAProxy goes on."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, host: str) -> None:
        self.host = host
        super().__init__((host, GATE), Carry)


class Carry(socketserver.BaseRequestHandler):
    server: Relay

    def handle(self) -> None:
        first = self.request.recv(65536)
        if first.startswith(b"GET /gate/health"):
            self.request.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            return
        with create_connection((self.server.host, VLLM)) as vllm:
            vllm.sendall(first)
            threading.Thread(target=pump, args=(self.request, vllm), daemon=True).start()
            pump(vllm, self.request)


def pump(source: socket, sink: socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)


def test_three_cells_with_one_prefill_node_serve_at_once_and_every_answer_is_its_own(gated: World) -> None:
    assert ask_long(gated, 24) == {"own"}
    answers = ask_many(gated, 18)
    assert {what for _, what in answers} == {"own"}
    assert {by for by, _ in answers} == {"cell-decode-0", "cell-decode-1", "cell-decode-2"}


def test_status_tells_what_the_gate_handed_over(gated: World) -> None:
    (gate,) = gated.json("status")["gates"]
    assert (gate["node"], gate["up"], gate["waiting"]) == ("prefill/0", True, 0)
    assert gate["queue_p95_s"] > 0
    assert {fed["node"] for fed in gate["feeds"]} == {"decode/0", "decode/1", "decode/2"}
    assert all(fed["landed"] and not fed["failed"] and fed["bytes"] and fed["handover_p95_s"] for fed in gate["feeds"])
    assert "prefill/0" in gated.ok("status").partition("gate")[2]


def test_render_shows_every_program_of_the_prefill_node(gated: World) -> None:
    vllm, gate, *routers = gated.ok("render", "fleet.yaml", "launch", "prefill/0").splitlines()
    assert "--scheduling-policy priority" in vllm
    host = address(gated, "prefill/0")
    assert f"--listen {host}:{GATE} --upstream http://{host}:{VLLM}" in gate
    assert [f"--vllm-url http://{host}:{GATE}" in router for router in routers] == [True] * 3


def test_past_the_gate_the_same_requests_get_each_others_answers(gated: World) -> None:
    with past_the_gate(gated):
        eventually(lambda: "foreign" in ask_long(gated, 12), what="a mixed-up answer")
    assert ask_long(gated, 6) == {"own"}


def test_a_second_up_changes_nothing(gated: World) -> None:
    assert gated.run("up", "--yes").stderr.startswith("nothing to change")


def test_a_dead_gate_takes_its_cells_out_and_batch_goes_on(gated: World) -> None:
    gated.ok("exec", "fleet.yaml", "prefill/0", "--", "docker", "stop", "gf-test-gate")
    eventually(lambda: set(cells(gated).values()) == {False}, what="the cells are down")
    assert gated.json("ask", "--channel", "chat", "count to 3")["served_by"] == "native"
    assert gated.json("ask", "--channel", "batch", "count to 3")["served_by"] == "native"
    gated.ok("exec", "fleet.yaml", "prefill/0", "--", "docker", "start", "gf-test-gate")
    eventually(lambda: set(cells(gated).values()) == {True}, what="the cells are back")
    assert {what for _, what in ask_many(gated, 3)} == {"own"}


def test_down_leaves_nothing(gated: World) -> None:
    assert_down_and_even(gated)
