"""Which request goes where, when it waits, and who goes first: a real HAProxy in front of small servers."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx

from tests.routing.harness import Backend, cell_server, router, until


def test_two_interactive_requests_never_meet_in_one_cell_and_a_third_waits_and_is_served() -> None:
    with router() as r:
        for cell in r.cells:
            cell.gate.clear()
        asked = [r.background(f"request {i}", stream=True) for i in range(3)]
        until(lambda: r.api.queued() == 1, "one request waits")
        assert [cell.running for cell in r.cells] == [1, 1]
        for cell in r.cells:
            cell.gate.set()
        answers = [a.result() for a in asked]
        assert [a.status_code for a in answers] == [200, 200, 200]
        assert all("world" in a.text and "[DONE]" in a.text for a in answers)
        assert [cell.most_at_once for cell in r.cells] == [1, 1]
        assert r.native.requests == []


def test_forty_requests_at_once_are_served_one_by_one_per_cell() -> None:
    with router(spill_queue=100) as r:
        asked = [r.background(f"request {i}", stream=bool(i % 2)) for i in range(40)]
        assert {a.result().status_code for a in asked} == {200}
        assert [cell.most_at_once for cell in r.cells] == [1, 1]
        assert sum(len(cell.requests) for cell in r.cells) == 40


def test_a_channel_of_higher_priority_overtakes_those_that_wait() -> None:
    with router(cells=1) as r:
        cell = r.cells[0]
        cell.gate.clear()
        asked = [r.background("first")]
        until(lambda: cell.running == 1, "the cell is busy")
        for number, (text, channel) in enumerate([("second", "chat"), ("third", "chat"), ("important", "vip")], 1):
            asked.append(r.background(text, channel=channel))
            until(lambda n=number: r.api.queued() == n, f"{number} wait")
        cell.gate.set()
        for request in asked:
            request.result()
        assert cell.texts() == ["first", "important", "second", "third"]


def test_above_the_limit_of_waiting_requests_further_ones_go_native() -> None:
    with router(cells=1, spill_queue=2) as r:
        cell = r.cells[0]
        cell.gate.clear()
        asked = [r.background("first")]
        until(lambda: cell.running == 1, "the cell is busy")
        for number in (1, 2):
            asked.append(r.background(f"waits {number}"))
            until(lambda n=number: r.api.queued() == n, f"{number} wait")
        assert r.served_by(text="spilled") == "native"
        cell.gate.set()
        assert [a.result().headers["x-gpufleet-served-by"] for a in asked] == ["cell-decode-0"] * 3


def test_with_a_limit_of_zero_nothing_waits() -> None:
    with router(cells=1, spill_queue=0) as r:
        assert r.served_by(text="the cell is free") == "cell-decode-0"
        r.cells[0].gate.clear()
        busy = r.background("busy")
        until(lambda: r.cells[0].running == 1, "the cell is busy")
        assert r.served_by(text="next") == "native"
        r.cells[0].gate.set()
        busy.result()


def test_batch_requests_go_native_many_at_a_time() -> None:
    with router() as r:
        r.native.gate.clear()
        asked = [r.background(f"batch {i}", channel="batch") for i in range(10)]
        until(lambda: r.native.running == 10, "all ten run at once")
        r.native.gate.set()
        assert {a.result().headers["x-gpufleet-served-by"] for a in asked} == {"native"}


def test_with_no_cell_up_interactive_requests_go_native() -> None:
    with router(cells=1) as r:
        r.cells[0].stop()
        until(lambda: not r.up()["cell-decode-0"], "the cell is down")
        assert r.served_by() == "native"


def test_a_dead_decode_node_takes_its_cell_out_though_the_cells_router_still_says_it_is_well() -> None:
    with router() as r:
        r.decodes[0].stop()
        until(lambda: not r.up()["cell-decode-0"], "the cell is out")
        assert r.cells[0].healthy
        assert {r.served_by() for _ in range(4)} == {"cell-decode-1"}
        r.decodes[0].start()
        until(lambda: r.up()["cell-decode-0"], "the cell is back")


def test_requests_that_wait_when_the_last_cell_dies_go_native() -> None:
    with router(cells=1) as r:
        r.cells[0].gate.clear()
        busy = r.background("busy", stream=True)
        until(lambda: r.cells[0].running == 1, "the cell is busy")
        waiting = r.background("waits")
        until(lambda: r.api.queued() == 1, "one waits")
        r.decodes[0].stop()
        until(lambda: not r.up()["cell-decode-0"], "the cell is out")
        assert waiting.result().headers["x-gpufleet-served-by"] == "native"
        r.cells[0].gate.set()
        assert "[DONE]" in busy.result().text


def test_without_native_a_full_queue_ends_in_a_clear_503() -> None:
    with router(cells=1, native=False, queue_timeout_s=1) as r:
        r.cells[0].gate.clear()
        busy = r.background("busy")
        until(lambda: r.cells[0].running == 1, "the cell is busy")
        late = r.post("late")
        assert late.status_code == 503
        assert "waited 1 s in the queue" in late.json()["error"]["message"]
        assert late.headers["retry-after"] == "5"
        r.cells[0].gate.set()
        busy.result()


def test_a_caller_who_leaves_the_queue_takes_no_cell() -> None:
    with router(cells=1) as r:
        r.cells[0].gate.clear()
        busy = r.background("busy")
        until(lambda: r.cells[0].running == 1, "the cell is busy")
        try:
            headers = {"authorization": "Bearer chat-key-1f2e"}
            body = {"messages": [{"role": "user", "content": "gave up"}], "max_tokens": 4}
            httpx.post(f"{r.url}/v1/chat/completions", json=body, headers=headers, timeout=0.5, trust_env=False)
        except httpx.ReadTimeout:
            pass
        until(lambda: r.api.queued() == 0, "nobody waits any more")
        r.cells[0].gate.set()
        busy.result()
        assert r.served_by(text="next") == "cell-decode-0"
        assert r.cells[0].texts() == ["busy", "next"]


def test_a_caller_who_leaves_a_stream_ends_it_behind_the_router_too() -> None:
    with router(cells=1) as r:
        r.cells[0].gate.clear()
        headers = {"authorization": "Bearer chat-key-1f2e"}
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "stream": True}
        with httpx.stream(
            "POST", f"{r.url}/v1/chat/completions", json=body, headers=headers, trust_env=False
        ) as answer:
            next(answer.iter_lines())
        until(lambda: r.api.servers()[0].active == 0, "the slot is free")
        r.cells[0].gate.set()
        until(lambda: r.cells[0].running == 0, "the server has noticed")


def test_a_drained_cell_ends_its_stream_and_gets_no_new_request() -> None:
    with router() as r:
        r.cells[0].gate.clear()
        r.cells[1].gate.clear()
        streams = [r.background(f"stream {i}", stream=True) for i in range(2)]
        until(lambda: r.cells[0].running == r.cells[1].running == 1, "both are busy")
        r.api.drain("cell-decode-0")
        r.cells[1].gate.set()
        assert {r.served_by() for _ in range(4)} == {"cell-decode-1"}
        assert r.cells[0].running == 1
        r.cells[0].gate.set()
        assert all("[DONE]" in stream.result().text for stream in streams)
        r.api.ready("cell-decode-0")
        until(lambda: "cell-decode-0" in {r.served_by() for _ in range(4)}, "the cell is used again")


def test_a_reload_keeps_streams_and_the_limit_of_one() -> None:
    """The new process does not know of the old one's stream: a second request for that cell waits at its pd_router."""
    with router() as r:
        for cell in r.cells:
            cell.gate.clear()
            cell.lease = threading.Lock()
        stream = r.background("stream", stream=True)
        busy = until(lambda: next((c for c in r.cells if c.running), None), "a cell is busy")
        r.reload(spill_queue=9)
        asked = [r.background(f"after {i}") for i in range(5)]
        until(lambda: r.api.queued() == 3, "the others wait in the new process")
        assert busy.texts() == ["stream"]
        for cell in r.cells:
            cell.gate.set()
        assert "[DONE]" in stream.result().text
        assert {a.result().status_code for a in asked} == {200}
        assert [cell.most_at_once for cell in r.cells] == [1, 1]


def test_a_drained_cell_stays_drained_over_a_reload() -> None:
    with router() as r:
        r.api.drain("cell-decode-0")
        r.save_state()
        r.reload(spill_queue=9)
        assert {r.served_by() for _ in range(4)} == {"cell-decode-1"}


def test_a_reload_can_move_a_cell_to_another_address() -> None:
    with router(cells=1) as r:
        moved = Backend("moved").start()
        r.save_state()
        r.reload(cells=(cell_server(Backend("cell-decode-0", moved.address), r.decodes[0]),))
        assert r.served_by(text="where") == "cell-decode-0"
        assert moved.texts() == ["where"]
        moved.stop()


def test_a_token_is_not_held_back_until_the_next_one() -> None:
    """Compared with the same server asked directly. Without ``http-no-delay`` a token waits 200 ms for company."""
    with router(cells=1) as r:
        sent: list[float] = []

        def slowly(handler: Any) -> bool:
            handler.start_stream()
            for _ in range(3):
                time.sleep(0.3)
                sent.append(time.monotonic())
                handler.event({"content": "x"})
            handler.leave()
            handler.chunk(b"data: [DONE]\n\n")
            handler.chunk(b"")
            return True

        r.cells[0].script = slowly
        server = f"http://{r.cells[0].address[0]}:{r.cells[0].address[1]}"
        direct = [_delays(server, sent) for _ in range(3)]
        through = [_delays(r.url, sent) for _ in range(3)]
        for token in range(3):
            assert min(d[token] for d in through) < min(d[token] for d in direct) + 0.1


def _delays(url: str, sent: list[float]) -> list[float]:
    """Seconds from sending a token to its arrival."""
    sent.clear()
    headers = {"authorization": "Bearer chat-key-1f2e"}
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers, trust_env=False) as answer:
        arrived = [time.monotonic() for line in answer.iter_lines() if '"content"' in line]
    return [there - here for here, there in zip(sent, arrived, strict=True)]
