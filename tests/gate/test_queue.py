"""Who waits for a turn at the gate, in which order, and how waiting ends."""

from __future__ import annotations

import asyncio

from tests.gate.scripted import Asked, Stage, landed
from tests.gate.test_exclusion import play


async def served(s: Stage, number: int) -> Asked:
    """Let the request of that number land; returns it."""
    asked = await s.vllm.request(number)
    await landed(asked)
    await asked.answer()
    return asked


def test_a_lower_number_goes_first_and_equals_go_in_order_of_arrival() -> None:
    async def scenario(s: Stage) -> None:
        await s.hand_over(s.one, user="first")
        await s.vllm.request(1)
        for position, (who, priority) in enumerate([("batch", 5), ("early", 0), ("late", 0), ("vip", -5)], 1):
            await s.hand_over(s.one, f"x-gpufleet-priority: {priority}\r\n", user=who)
            await s.waiting(position)
        order = [(await served(s, number)).body["user"] for number in range(1, 6)]
        assert order == ["first", "vip", "early", "late", "batch"]

    play(scenario)


def test_hand_overs_without_the_field_get_the_gates_priority() -> None:
    async def scenario(s: Stage) -> None:
        await s.hand_over(s.one)
        assert (await s.vllm.request(1)).body["priority"] == -7

    play(scenario, priority=-7)


def test_a_client_that_hangs_up_leaves_the_queue() -> None:
    async def scenario(s: Stage) -> None:
        await s.hand_over(s.one, user="first")
        await s.vllm.request(1)
        _, leaving = await s.hand_over(s.one, user="leaving")
        await s.waiting(1)
        await s.hand_over(s.one, user="staying")
        await s.waiting(2)
        leaving.transport.abort()
        await s.waiting(1)
        await served(s, 1)
        assert (await s.vllm.request(2)).body["user"] == "staying"

    play(scenario)


def test_waiting_too_long_is_told_with_what_holds_the_turn() -> None:
    async def scenario(s: Stage) -> None:
        await s.hand_over(s.one)
        await s.vllm.request(1)
        late, _ = await s.hand_over(s.two)
        answer = await late
        assert (answer.status, answer.code) == (503, "queue")
        assert f"the hand-over to {s.one.address} runs" in answer.phrase
        assert "vLLM has not answered" in answer.phrase
        assert await s.metric('gpufleet_gate_refusals_total{reason="queue"}') == 1
        await served(s, 1)
        await s.hand_over(s.two)
        await s.vllm.request(2)

    play(scenario, queue_s=0.1)


def test_a_priority_that_is_no_number_is_refused() -> None:
    async def scenario(s: Stage) -> None:
        refused, _ = await s.hand_over(s.one, "x-gpufleet-priority: high\r\n")
        assert (await refused).code == "priority"

    play(scenario)


def test_metrics_tell_waits_hand_overs_and_tokens_by_node() -> None:
    async def scenario(s: Stage) -> None:
        first, _ = await s.hand_over(s.one)
        await served(s, 1)
        assert (await first).status == 200
        while await s.metric("gpufleet_gate_busy"):
            await asyncio.sleep(0.005)
        node = f'decode="{s.one.address}"'
        assert await s.metric(f'gpufleet_gate_handovers_total{{{node},outcome="landed"}}') == 1
        assert await s.metric(f"gpufleet_gate_tokens_total{{{node}}}") == 20
        assert await s.metric(f"gpufleet_gate_handover_seconds_count{{{node}}}") == 1
        assert await s.metric('gpufleet_gate_queue_seconds_bucket{le="+Inf"}') == 1

    play(scenario)
