"""What the KV gate costs: time to first token of a hand-over at an idle gate, and throughput of native requests.

Both compare with the same stand-ins without a gate, in turns. Prints milliseconds and ratios.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parent.parent))

from gpufleet.twin import answers
from tests.gate.machines import start_gate
from tests.twin.serving import Machines, Server, chat_body, machines_in, parsed

ROUNDS = 200
PARALLEL = 200


PROMPT = "how long does it take " * 40
PREFILL_MS = 100
"""Of this prompt. Ranks shake hands meanwhile; a real GLM-5.1 prefill takes that long or longer."""


def first_token(client: httpx.Client, url: str) -> float:
    """Seconds until the first token of a streamed answer."""
    began = time.perf_counter()
    body = chat_body(PROMPT, stream=True, max_tokens=2)
    with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        for event in parsed(response):
            if isinstance(event, dict) and event["choices"][0]["delta"].get("content"):
                return time.perf_counter() - began
    raise AssertionError("no token")


def compare_first_token(what: str, machines: Machines, prefill_ms: float) -> None:
    """Two cells with one prefill node: one through the gate, one not."""
    tps = len(answers.encode(answers.render(chat_body(PROMPT)["messages"]))) * 1000 / prefill_ms
    prefill = machines.prefill(node={"pace": {"prefill_tps": tps}}).ready()
    decodes = [machines.decode().ready() for _ in range(2)]
    gate = start_gate(machines, prefill).ready()
    through, direct = machines.pd_router(gate, decodes[0]).ready(), machines.pd_router(prefill, decodes[1]).ready()
    alternate(what, through, direct)


def alternate(what: str, through: Server, direct: Server) -> None:
    """Alternate between the two and print the difference of the medians."""
    taken: dict[str, list[float]] = {through.url: [], direct.url: []}
    with httpx.Client(timeout=30) as client:
        for number in range(2 * ROUNDS + 20):
            url = (through.url, direct.url)[number % 2]
            seconds = first_token(client, url)
            if number >= 20:
                taken[url].append(seconds * 1000)
    gate, none = (statistics.median(taken[server.url]) for server in (through, direct))
    print(f"first token, idle gate, {what}: p50 {gate:.2f} ms, direct {none:.2f} ms, added {gate - none:.2f} ms")


def throughput(url: str, client: httpx.Client) -> float:
    """Native requests per second with ``PARALLEL`` at once."""

    def one(number: int) -> None:
        body = chat_body(f"native {number} " * 20, stream=True, max_tokens=40)
        with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
            response.read()

    began = time.perf_counter()
    with ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(one, range(2 * PARALLEL)))
    return 2 * PARALLEL / (time.perf_counter() - began)


def compare_throughput(gate: Server, vllm: Server) -> None:
    """Alternate between the two and print the ratio of the medians."""
    limits = httpx.Limits(max_connections=PARALLEL)
    with httpx.Client(timeout=60, limits=limits) as client:
        rates = [(throughput(gate.url, client), throughput(vllm.url, client)) for _ in range(3)]
    through, direct = (statistics.median(side) for side in zip(*rates, strict=True))
    print(
        f"native, {PARALLEL} at once: {through:.0f}/s through the gate, {direct:.0f}/s direct, {through / direct:.3f}"
    )


def main() -> None:
    """Start everything, measure, print."""
    with tempfile.TemporaryDirectory() as folder, machines_in(Path(folder)) as machines:
        measure(machines)


def measure(machines: Machines) -> None:
    """Native answers come at 20 tokens a second."""
    compare_first_token(f"{PREFILL_MS} ms of prefill", machines, PREFILL_MS)
    compare_first_token("no prefill time, so that all of the handshake shows", machines, 0.1)
    slow = machines.prefill(node={"pace": {"native_tps": 20}}).ready()
    compare_throughput(start_gate(machines, slow).ready(), slow)


if __name__ == "__main__":
    main()
