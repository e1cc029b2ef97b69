"""The gate opens when the staging buffers are free, and not before: each step decided by the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gate.scripted import SENDERS, Rank, Stage, admitted, landed, stage, until

Scenario = Callable[[Stage], Awaitable[None]]


def play(scenario: Scenario, **settings: Any) -> None:
    async def main() -> None:
        async with stage(**settings) as made:
            await scenario(made)

    asyncio.run(main())


async def closed(s: Stage, requests: int) -> None:
    """Assert that the gate stays shut: a waiting request has not reached vLLM after full rounds through the gate."""
    for _ in range(3):
        await s.get("/gate/metrics")
        await asyncio.sleep(0.01)
    assert len(s.vllm.asked) == requests


def test_a_second_request_reaches_vllm_when_every_rank_of_the_first_is_done() -> None:
    async def scenario(s: Stage) -> None:
        first, _ = await s.hand_over(s.one)
        second, _ = await s.hand_over(s.two)
        asked = await s.vllm.request(1)
        ranks = await admitted(asked)
        await asked.answer()
        assert (await first).status == 200
        for rank in ranks:
            await closed(s, 1)
            rank.done()
        other = await s.vllm.request(2)
        await landed(other)
        await other.answer()
        assert (await second).status == 200
        assert {message["rank"] for message in s.two.seen} == set(range(SENDERS))

    play(scenario)


def test_done_ranks_alone_do_not_open_it_before_vllm_has_answered() -> None:
    async def scenario(s: Stage) -> None:
        first, _ = await s.hand_over(s.one)
        await s.hand_over(s.two)
        asked = await s.vllm.request(1)
        await landed(asked)
        await closed(s, 1)
        await asked.answer()
        assert (await first).status == 200
        await s.vllm.request(2)

    play(scenario)


def test_the_request_changes_in_nothing_but_relay_and_priority() -> None:
    async def scenario(s: Stage) -> None:
        await s.hand_over(s.one, "X-GPUfleet-Priority: -3\r\nX-Other: kept\r\n", temperature=0.5)
        asked = await s.vllm.request(1)
        assert "X-Other: kept" in asked.head
        assert asked.body.pop("priority") == -3
        assert asked.relay != s.one.address
        assert asked.body == {
            "prompt": "hi",
            "temperature": 0.5,
            "kv_transfer_params": asked.body["kv_transfer_params"],
        }

    play(scenario)


def test_what_ranks_and_node_say_passes_byte_for_byte() -> None:
    async def scenario(s: Stage) -> None:
        await s.hand_over(s.one)
        asked = await s.vllm.request(1)
        await landed(asked)
        await until(lambda: len(s.one.seen) == 2 * SENDERS, "all messages arrived")
        assert sum("done" in message for message in s.one.seen) == SENDERS

    play(scenario)


def test_the_answer_waits_until_every_rank_is_admitted() -> None:
    async def scenario(s: Stage) -> None:
        first, _ = await s.hand_over(s.one)
        asked = await s.vllm.request(1)
        await admitted(asked, SENDERS - 1)
        await asked.answer()
        await closed(s, 1)
        assert not first.done()
        last = await Rank.connect(SENDERS - 1, asked)
        assert await last.ask()
        assert (await first).status == 200

    play(scenario)


def test_a_rank_may_be_refused_and_come_again() -> None:
    async def scenario(s: Stage) -> None:
        s.one.refusals = ["busy", "cancelling"]
        first, _ = await s.hand_over(s.one)
        asked = await s.vllm.request(1)
        assert not await (await Rank.connect(0, asked)).ask()
        assert not await (await Rank.connect(0, asked)).ask()
        await landed(asked)
        await asked.answer()
        assert (await first).status == 200

    play(scenario)


@pytest.mark.parametrize(
    ("refusals", "attempts", "why"), [(["busy", "busy"], 2, "busy"), (["duplicate_rank"], 5, "duplicate_rank")]
)
def test_a_last_refusal_fails_the_request_at_once_but_the_turn_ends_with_vllms_answer(
    refusals: list[str], attempts: int, why: str
) -> None:
    async def scenario(s: Stage) -> None:
        s.one.refusals = list(refusals)
        first, _ = await s.hand_over(s.one)
        await s.hand_over(s.two)
        asked = await s.vllm.request(1)
        for _ in refusals:
            assert not await (await Rank.connect(0, asked)).ask()
        answer = await first
        assert (answer.status, answer.code) == (503, "refused")
        assert why in answer.phrase
        await closed(s, 1)
        await asked.answer()
        await s.vllm.request(2)

    play(scenario, attempts=attempts)


def test_after_a_failure_ranks_that_were_not_admitted_are_shut_out() -> None:
    async def scenario(s: Stage) -> None:
        s.one.refusals = []
        first, _ = await s.hand_over(s.one)
        asked = await s.vllm.request(1)
        early = await Rank.connect(0, asked)
        s.one.refusals = ["no"]
        assert not await (await Rank.connect(1, asked)).ask()
        assert (await first).status == 503
        with pytest.raises(EOFError):
            await early.ask()
        with pytest.raises(OSError, match="onnect"):
            await Rank.connect(2, asked)

    play(scenario)


def test_after_a_failure_the_gate_waits_for_ranks_that_may_still_write() -> None:
    async def scenario(s: Stage) -> None:
        first, _ = await s.hand_over(s.one)
        await s.hand_over(s.two)
        asked = await s.vllm.request(1)
        (writing,) = await admitted(asked, 1)
        s.one.refusals = ["no"]
        assert not await (await Rank.connect(1, asked)).ask()
        assert (await first).status == 503
        await asked.answer()
        await closed(s, 1)
        assert len(s.one.open) == 1, "the decode node must see that somebody still writes"
        writing.done()
        await s.vllm.request(2)

    play(scenario)


def test_a_node_that_hangs_up_says_nothing_about_the_ranks() -> None:
    async def scenario(s: Stage) -> None:
        await s.hand_over(s.one)
        await s.hand_over(s.two)
        asked = await s.vllm.request(1)
        ranks = await admitted(asked)
        await asked.answer()
        s.one.die()
        await closed(s, 1)
        for rank in ranks:
            rank.done()
        await s.vllm.request(2)

    play(scenario)


def test_a_node_gets_nothing_for_a_while_after_a_rank_broke_off_and_others_do() -> None:
    async def scenario(s: Stage) -> None:
        await s.hand_over(s.one)
        asked = await s.vllm.request(1)
        ranks = await admitted(asked)
        await asked.answer()
        for rank in ranks:
            rank.close()
        other, _ = await s.hand_over(s.two)
        await landed(await s.vllm.request(2))
        again, _ = await s.hand_over(s.one)
        answer = await again
        assert (answer.status, answer.code) == (503, "quarantine")
        assert int(answer.fields["retry-after"]) > 100
        assert not other.done()

    play(scenario)


def test_quarantine_ends() -> None:
    async def scenario(s: Stage) -> None:
        await s.hand_over(s.one)
        asked = await s.vllm.request(1)
        (rank,) = await admitted(asked, 1)
        rank.close()
        await asked.answer()
        await until(lambda: not s.service.gate.gauges()["busy"], "the turn ended")
        await s.hand_over(s.one)
        await s.vllm.request(2)

    play(scenario, quarantine_s=0.0)


def test_ranks_that_never_come_fail_the_request_and_cannot_come_later() -> None:
    async def scenario(s: Stage) -> None:
        first, _ = await s.hand_over(s.one)
        await s.hand_over(s.two)
        asked = await s.vllm.request(1)
        (present, *_) = await admitted(asked, 1)
        present.done()
        await asked.answer()
        answer = await first
        assert (answer.status, answer.code) == (504, "ranks-missing")
        assert "ranks [1, 2]" in answer.phrase
        await s.vllm.request(2)
        with pytest.raises(OSError, match="onnect"):
            await Rank.connect(1, asked)

    play(scenario, connect_s=0.2)


def test_vllm_that_rejects_the_prompt_ends_the_turn_and_its_words_reach_the_client() -> None:
    async def scenario(s: Stage) -> None:
        first, _ = await s.hand_over(s.one)
        await s.hand_over(s.two)
        await (await s.vllm.request(1)).answer(400, b'{"error":"too long"}')
        answer = await first
        assert (answer.status, answer.body) == (400, b'{"error":"too long"}')
        await s.vllm.request(2)

    play(scenario)


def test_a_client_that_leaves_after_sending_changes_nothing_for_the_hand_over() -> None:
    async def scenario(s: Stage) -> None:
        _, client = await s.hand_over(s.one)
        await s.hand_over(s.two)
        asked = await s.vllm.request(1)
        client.transport.abort()
        await closed(s, 1)
        assert not asked.reader.at_eof(), "vLLM must not be told to abort: its answer is the evidence"
        await landed(asked)
        await asked.answer()
        await s.vllm.request(2)

    play(scenario)


def test_a_deadline_answers_the_client_and_keeps_the_gate_shut() -> None:
    async def scenario(s: Stage) -> None:
        first, _ = await s.hand_over(s.one)
        asked = await s.vllm.request(1)
        ranks = await admitted(asked, SENDERS)
        await s.hand_over(s.two)
        answer = await first
        assert (answer.status, answer.code) == (504, "handover-deadline")
        await asked.answer()
        await closed(s, 1)
        for rank in ranks:
            rank.done()
        await s.vllm.request(2)

    play(scenario, handover_s=0.3)


@pytest.mark.parametrize("status", [0, 500])
def test_when_the_answer_is_lost_hand_overs_are_refused_until_a_safe_time_has_passed(status: int) -> None:
    async def scenario(s: Stage) -> None:
        first, _ = await s.hand_over(s.one)
        waiting, _ = await s.hand_over(s.two)
        asked = await s.vllm.request(1)
        await s.waiting(1)
        if status:
            await asked.answer(status)
        else:
            asked.hang_up()
        assert (await first).status == (status or 502)
        answer = await waiting
        assert (answer.status, answer.code) == (503, "settling")
        assert (await s.get("/gate/health")).status == 503
        await until(lambda: s.service.gate.refusal is None, "the safe time passed")
        await s.hand_over(s.two)
        await s.vllm.request(2)

    play(scenario, settle_s=1.0)


def test_a_vllm_that_is_gone_ends_the_wait() -> None:
    async def scenario(s: Stage) -> None:
        first, _ = await s.hand_over(s.one)
        asked = await s.vllm.request(1)
        s.vllm.stop()
        asked.hang_up()
        assert (await first).code == "answer-lost"
        await until(lambda: s.service.gate.refusal is None, "it opened again")
        again, _ = await s.hand_over(s.one)
        assert (await again).code == "vllm-unreachable"

    play(scenario)


def test_an_unreachable_node_is_named() -> None:
    async def scenario(s: Stage) -> None:
        s.one.die()
        first, _ = await s.hand_over(s.one)
        asked = await s.vllm.request(1)
        rank = await Rank.connect(0, asked)
        answer = await first
        assert (answer.status, answer.code) == (503, "unreachable")
        assert str(s.one.address) in answer.phrase
        with pytest.raises(EOFError):
            await rank.ask()
        await asked.answer()

    play(scenario)


def test_a_rank_that_dislikes_the_hello_fails_the_request_at_once() -> None:
    async def scenario(s: Stage) -> None:
        first, _ = await s.hand_over(s.one)
        asked = await s.vllm.request(1)
        (await Rank.connect(0, asked)).close()
        answer = await first
        assert (answer.status, answer.code) == (503, "handshake")
        assert "did not like the hello" in answer.phrase

    play(scenario)


def test_a_silent_node_ends_with_the_deadline() -> None:
    async def scenario(s: Stage) -> None:
        s.one.silent = True
        first, _ = await s.hand_over(s.one)
        asked = await s.vllm.request(1)
        rank = await Rank.connect(0, asked)
        await asked.answer()
        assert (await first).code == "ranks-missing"
        with pytest.raises(EOFError):
            await rank.ask()

    play(scenario, connect_s=0.2)


def test_a_rank_of_another_request_is_cut_before_it_reaches_the_node() -> None:
    async def scenario(s: Stage) -> None:
        await s.hand_over(s.one)
        asked = await s.vllm.request(1)
        await admitted(asked, 1, rid="mine")
        stranger = await Rank.connect(1, asked, rid="late")
        with pytest.raises(EOFError):
            await stranger.ask()
        assert all(message["rid"] == "mine" for message in s.one.seen)

    play(scenario)


def test_a_restarted_gate_waits_when_a_hand_over_ran_and_only_then(tmp_path: Path) -> None:
    state = tmp_path / "gate.busy"

    async def killed(s: Stage) -> None:
        await s.hand_over(s.one)
        await s.vllm.request(1)
        assert state.exists()

    async def shut(s: Stage) -> None:
        refused, _ = await s.hand_over(s.one)
        assert (await refused).code == "settling"
        await until(lambda: not state.exists(), "it settled")

    async def open_at_once(s: Stage) -> None:
        await s.hand_over(s.one)
        await s.vllm.request(1)

    play(killed, state=state)
    assert state.exists(), "a gate that ends during a hand-over leaves its mark"
    play(shut, state=state, settle_s=1.0)
    play(open_at_once, state=state)


def test_several_answers_to_one_prompt_are_not_handed_over() -> None:
    async def scenario(s: Stage) -> None:
        for extra in ({"n": 2}, {"best_of": 3}, {"use_beam_search": True}, {"prompt": ["a", "b"]}):
            refused, _ = await s.hand_over(s.one, **extra)
            assert (await refused).code == "several"
        assert not s.vllm.asked

    play(scenario)


def test_a_hand_over_cannot_hide_from_the_gate() -> None:
    async def scenario(s: Stage) -> None:
        params = json.dumps({"tilert_host": s.one.address.host, "tilert_ctrl_port": s.one.address.port})
        escaped = params.replace("tilert_host", "tilert\\u005fhost")
        for number, body in enumerate(
            (f'{{"kv_transfer_params":{escaped}}}'.encode(), f'{{"kv_transfer_params":{params}}}'.encode("utf-16")), 1
        ):
            size = len(body)
            await s.send(f"POST /v1/completions HTTP/1.1\r\nContent-Length: {size}\r\n\r\n".encode() + body)
            asked = await s.vllm.request(number)
            assert asked.relay != s.one.address
            await landed(asked)
            await asked.answer()
        text = f'{{"kv_transfer_params":{params}}}'.encode()
        reader, _ = await s.send(f"POST /invocations HTTP/1.1\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
        assert b" 400 " in await reader.readline()

    play(scenario)
