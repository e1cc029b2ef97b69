"""TileRT's real connector and control plane with the gate between, under faults: whose KV reaches the decode nodes?

Needs Python 3.12 with torch (any build), ``pip install --no-deps tilert==0.1.6.post3``, fastapi, uvicorn, httpx,
requests, pydantic and numpy; no GPU. From the repository's root:

    PYTHONPATH=. python3.12 tests/real/gate_soak.py --requests 10000            # through two gates, with faults
    PYTHONPATH=. python3.12 tests/real/gate_soak.py --requests 1000 --without   # the same without gates

Two prefill nodes with four decode nodes each. Faults: refused and slow admissions, writes that fail, clients that hang
up, decode nodes and gates killed and started again. Exits with 1 when foreign KV came through the gate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from gpufleet.gate.bundle import bundle

HERE = Path(__file__).parent
CELLS, PREFILLS, MAX_PROMPT = 8, 2, 128
HOST = "127.77.0.{}"
VLLM, GATE, CTRL, HTTP = 8000, 8100, 35556, 35557
GATE_FLAGS = [
    "--settle",
    "3",
    "--quarantine",
    "0.3",
    "--deadline-connect",
    "3",
    "--deadline-queue",
    "20",
    "--deadline-handover",
    "20",
]


@dataclass
class Run:
    """The processes and what came out."""

    folder: Path
    gated: bool
    faults: float
    left: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    def start(self, kind: str, number: int) -> None:
        """Start or start again."""
        host = HOST.format(number + 1 + (100 if kind == "decode" else 0))
        command = {
            "prefill": ["kv_prefill.py", host, VLLM, self.faults / 10],
            "decode": ["kv_decode.py", host, CTRL, HTTP, self.faults],
            "gate": [
                self.folder / "gate.pyz", "--listen", f"{host}:{GATE}", "--upstream", f"http://{host}:{VLLM}",
                "--relay-host", host, "--state", self.folder / f"gate-{number}.busy", *GATE_FLAGS,
            ],
        }[kind]  # fmt: skip
        path = command[0] if kind == "gate" else HERE / str(command[0])
        argv = [sys.executable, str(path), *map(str, command[1:])]
        log = (self.folder / f"{kind}-{number}.log").open("ab")
        self.processes[f"{kind}-{number}"] = subprocess.Popen(argv, stdout=log, stderr=log)

    def kill(self, kind: str, number: int) -> None:
        """As a crash does."""
        process = self.processes[f"{kind}-{number}"]
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """End everything."""
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()
        for file in Path("/dev/shm").glob("kv-decode-*"):
            file.unlink(missing_ok=True)


async def ready(client: httpx.AsyncClient, url: str) -> None:
    """Until it answers."""
    deadline = time.monotonic() + 120
    while True:
        try:
            await client.get(url)
        except httpx.TransportError:
            assert time.monotonic() < deadline, f"{url} never answered"
            await asyncio.sleep(0.2)
        else:
            return


async def handed_over(client: httpx.AsyncClient, prefill: str, decode: str) -> str:
    """One request as pd_router makes it; what became of it."""
    prompt = [random.randrange(1, 251) for _ in range(random.randrange(1, MAX_PROMPT + 1))]
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": 1}
    body["kv_transfer_params"] = {"tilert_host": decode, "tilert_ctrl_port": CTRL}
    first = await client.post(f"{prefill}/v1/completions", json=body)
    if first.status_code != 200:
        return f"failed: {json.loads(first.content)['error']['code']}"
    second = {"rid": first.json()["id"].removeprefix("cmpl-"), "first_token_id": 1, "timeout_s": 4}
    reply = await client.post(f"http://{decode}:{HTTP}/pd/decode", json=second)
    if reply.status_code != 200:
        return f"failed: decode answered {reply.status_code}"
    return "own KV" if reply.json()["token_ids"][1] == 1_000_000 else "FOREIGN KV"


async def cell(run: Run, number: int) -> None:
    """One decode node's requests, one after the other."""
    host = HOST.format(number % PREFILLS + 1)
    prefill = f"http://{host}:{GATE if run.gated else VLLM}"
    decode = HOST.format(number + 101)
    async with httpx.AsyncClient(timeout=60) as client:
        while run.left > 0:
            run.left -= 1
            began = time.monotonic()
            what = await outcome(client, run, prefill, decode)
            run.seen[what] += 1
            if what == "own KV":
                run.seconds.append(time.monotonic() - began)
            elif what.startswith("failed"):
                await asyncio.sleep(0.5)


async def outcome(client: httpx.AsyncClient, run: Run, prefill: str, decode: str) -> str:
    """Also when the client hangs up after a while, or a peer is dead."""
    patience = random.random() / 20 if random.random() < run.faults else 60
    try:
        async with asyncio.timeout(patience):
            return await handed_over(client, prefill, decode)
    except TimeoutError:
        return "client hung up"
    except httpx.TransportError as error:
        return f"failed: {type(error).__name__}"


async def break_things(run: Run) -> None:
    """Kill decode nodes and gates, one at a time, while requests run."""
    while run.left > 0:
        await asyncio.sleep(random.uniform(10, 20))
        kind, of = random.choice([("decode", CELLS), ("decode", CELLS), ("gate", PREFILLS)])
        number = random.randrange(of)
        run.kill(kind, number)
        run.seen[f"(killed a {kind} node)" if kind == "decode" else "(killed a gate)"] += 1
        await asyncio.sleep(random.uniform(0.2, 1))
        run.start(kind, number)


async def soak(run: Run) -> None:
    """Start all, run all, count."""
    for number in range(CELLS):
        run.start("decode", number)
    for number in range(PREFILLS):
        run.start("prefill", number)
    async with httpx.AsyncClient() as client:
        for number in range(CELLS):
            await ready(client, f"http://{HOST.format(number + 101)}:{HTTP}/health")
        for number in range(PREFILLS):
            await ready(client, f"http://{HOST.format(number + 1)}:{VLLM}/health")
            if run.gated:
                run.start("gate", number)
                await ready(client, f"http://{HOST.format(number + 1)}:{GATE}/health")
    breaker = asyncio.ensure_future(break_things(run)) if run.faults and run.gated else None
    began = time.monotonic()
    await asyncio.gather(*(cell(run, number) for number in range(CELLS)))
    run.seconds.sort()
    if breaker is not None:
        breaker.cancel()
    print(f"{'through gates' if run.gated else 'without gates'}: {time.monotonic() - began:.0f} s")
    print(f"hand-over and decode: median {1000 * run.seconds[len(run.seconds) // 2]:.0f} ms")
    for what, count in run.seen.most_common():
        print(f"{count:7} {what}")


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--without", action="store_true", help="no gate: shows the corruption")
    parser.add_argument("--faults", type=float, default=0.02, help="share of requests with a fault")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        run = Run(Path(name), not args.without, args.faults, args.requests)
        (run.folder / "gate.pyz").write_bytes(bundle())
        try:
            asyncio.run(soak(run))
        finally:
            run.stop()
    return 1 if run.gated and run.seen["FOREIGN KV"] else 0


if __name__ == "__main__":
    sys.exit(main())
