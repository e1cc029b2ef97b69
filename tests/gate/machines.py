"""Gates on simulated nodes: the file that a node gets, run by a bare interpreter, before the stand-in for vLLM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gpufleet.gate.bundle import bundle
from tests.twin.serving import Machines, Server

PORT = 8100


def start_gate(machines: Machines, vllm: Server, *argv: object) -> Server:
    """A gate beside ``vllm``; it may not be ready yet."""
    program = machines.folder / "gate.pyz"
    if not program.exists():
        program.write_bytes(bundle())
    number = len(machines.servers)
    state = machines.folder / f"gate-{vllm.host}.busy"
    log = machines.folder / f"gate-{number}.log"
    where = ("--listen", f"{vllm.host}:{PORT}", "--upstream", vllm.url, "--relay-host", vllm.host)
    command = [sys.executable, "-I", "-S", str(program), *where, "--state", str(state), *map(str, argv)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    server = Server(process, f"http://{vllm.host}:{PORT}", log)
    machines.servers.append(server)
    return server


def state_of(machines: Machines, vllm: Server) -> Path:
    """The state file of the gate beside ``vllm``."""
    return machines.folder / f"gate-{vllm.host}.busy"
