"""Who meets whom in a cell, who overtakes, who spills: through the real HAProxy in front of a served fleet."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

from gpufleet.engine.front import Front
from gpufleet.engine.session import open_session
from gpufleet.routing.runtime import RuntimeApi
from tests.e2e.world import BATCH_KEY, CHAT_KEY, VIP_KEY, World, eventually


@dataclass(frozen=True)
class Served:
    by: str
    first: float
    last: float
    text: str


def _ask(world: World, key: str, prompt: str) -> Served:
    body = {
        "model": "glm5",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 2000,
        "stream": True,
    }
    headers = {"authorization": f"Bearer {key}"}
    with httpx.stream("POST", f"{world.url}/v1/chat/completions", json=body, headers=headers, timeout=120) as reply:
        assert reply.status_code == 200, reply.read()
        first, text = 0.0, ""
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                first = first or time.monotonic()
                text += line
        assert "[DONE]" in line or text
        return Served(reply.headers["x-gpufleet-served-by"], first, time.monotonic(), text)


def test_two_interactive_requests_never_meet_in_one_cell_and_a_third_waits(served: World) -> None:
    with ThreadPoolExecutor(max_workers=3) as pool:
        answers = list(pool.map(lambda i: _ask(served, CHAT_KEY, f"count to {200 + i}"), range(3)))
    by_cell: dict[str, list[Served]] = {}
    for answer in answers:
        by_cell.setdefault(answer.by, []).append(answer)
    assert set(by_cell) == {"cell-decode-0", "cell-decode-1"}
    for together in by_cell.values():
        together.sort(key=lambda a: a.first)
        assert all(a.last <= b.first for a, b in itertools.pairwise(together))


def test_a_vip_overtakes_the_queue(served: World) -> None:
    done: list[str] = []

    def ask(name: str, key: str, prompt: str) -> None:
        _ask(served, key, prompt)
        done.append(name)

    threads = [threading.Thread(target=ask, args=(f"busy{i}", CHAT_KEY, "count to 900")) for i in range(2)]
    for thread in threads:
        thread.start()
    eventually(lambda: _active(served) == 2, what="both cells busy")
    for i in range(2):
        threads.append(threading.Thread(target=ask, args=(f"chat{i}", CHAT_KEY, "count to 60")))
        threads[-1].start()
    eventually(lambda: _queued(served) == 2, what="two chats waiting")
    assert _waiting(served) == 2
    threads.append(threading.Thread(target=ask, args=("vip", VIP_KEY, "count to 20")))
    threads[-1].start()
    for thread in threads:
        thread.join(timeout=120)
    rest = [name for name in done if not name.startswith("busy")]
    assert rest[0] == "vip"


def test_interactive_requests_beyond_the_queue_limit_spill_to_native(served: World) -> None:
    with ThreadPoolExecutor(max_workers=12) as pool:
        answers = list(pool.map(lambda i: _ask(served, CHAT_KEY, f"count to {150 + i}"), range(12)))
    assert {a.by for a in answers} == {"cell-decode-0", "cell-decode-1", "native"}


def test_a_caller_that_goes_away_frees_its_cell(served: World) -> None:
    body = {"model": "glm5", "messages": [{"role": "user", "content": "count to 5000"}], "max_tokens": 20000}
    headers = {"authorization": f"Bearer {CHAT_KEY}"}
    with httpx.stream(
        "POST", f"{served.url}/v1/chat/completions", json={**body, "stream": True}, headers=headers, timeout=60
    ) as reply:
        next(reply.iter_lines())
    eventually(lambda: _active(served) == 0, what="the cell is free again")
    assert _ask(served, CHAT_KEY, "count to 3").by.startswith("cell-")


def test_a_batch_never_takes_a_cell(served: World) -> None:
    with ThreadPoolExecutor(max_workers=6) as pool:
        answers = list(pool.map(lambda i: _ask(served, BATCH_KEY, f"count to {20 + i}"), range(6)))
    assert {a.by for a in answers} == {"native"}


def _router(world: World) -> RuntimeApi:
    return RuntimeApi(world.state / "fleets" / "test" / "router" / "haproxy.sock")


def _active(world: World) -> int:
    return sum(s.active for s in _router(world).servers() if s.name.startswith("cell-"))


def _waiting(world: World) -> int | None:
    """What `status` tells."""
    with open_session(world.file, state_dir=world.state) as session:
        return Front(session).status().waiting


def _queued(world: World) -> int:
    return _router(world).queued()
