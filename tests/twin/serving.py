"""Simulated nodes for tests: each serving stand-in is a real process on a loopback address of its own."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from gpufleet.twin import wire

TWIN = Path(wire.__file__).parent
_FIRST = os.getpid() * 499 % 60000
"""Test processes that run beside each other start at different addresses."""
_ADDRESSES = (f"127.67.{n // 250 % 250}.{n % 250 + 2}" for n in itertools.count(_FIRST))
TIME_SCALE = 1000.0
DEADLINE = 30.0
MTP = ("--speculative-config", '{"method":"mtp","num_speculative_tokens":1}')
NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}


def tilert_connector(**extra: Any) -> dict[str, Any]:
    """TileRT's connector, as facts and launch commands have it."""
    return {
        "kv_connector": "TileRTConnector",
        "kv_connector_module_path": "tilert.pd_vllm.prefill_connector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"tilert_model": "glm5", "tilert_transport": "nixl"} | extra,
    }


def both_connectors(**extra: Any) -> str:
    """NIXL and TileRT together."""
    connectors = [NIXL, tilert_connector(**extra)]
    config = {"kv_connector": "MultiConnector", "kv_role": "kv_producer"}
    return json.dumps(config | {"kv_connector_extra_config": {"connectors": connectors}})


def until(condition: Any, what: str) -> Any:
    """Poll until ``condition`` is true; fail after a deadline."""
    deadline = time.monotonic() + DEADLINE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)
    return value


@dataclass
class Server:
    """A started stand-in."""

    process: subprocess.Popen[bytes]
    url: str
    log_file: Path

    @property
    def log(self) -> str:
        """What it printed so far."""
        return self.log_file.read_text()

    @property
    def host(self) -> str:
        """Its address, without the port."""
        return self.url.removeprefix("http://").rpartition(":")[0]

    def healthy(self) -> bool:
        """Whether /health answers 200."""
        assert self.process.poll() is None, self.log
        try:
            return httpx.get(f"{self.url}/health").status_code == 200
        except httpx.TransportError:
            return False

    def ready(self) -> Server:
        """Wait for it."""
        until(self.healthy, f"{self.url} healthy: {self.log}")
        return self

    def get(self, path: str) -> httpx.Response:
        """GET a path."""
        return httpx.get(self.url + path)

    def post(self, path: str, body: object, **kwargs: Any) -> httpx.Response:
        """POST JSON."""
        return httpx.post(self.url + path, json=body, timeout=DEADLINE, **kwargs)

    def chat(self, text: str, **extra: Any) -> httpx.Response:
        """One chat request."""
        return self.post("/v1/chat/completions", chat_body(text, **extra))

    def say(self, text: str, **extra: Any) -> str:
        """The content of the answer to one chat request."""
        return str(self.chat(text, **extra).raise_for_status().json()["choices"][0]["message"]["content"])

    def stream(self, text: str, **extra: Any) -> list[Any]:
        """All events of a streamed answer; the last is the string ``[DONE]``."""
        return list(self.events(text, **extra))

    def events(self, text: str, **extra: Any) -> Iterator[Any]:
        """Events of a streamed answer, as they come."""
        body = chat_body(text, stream=True, **extra)
        with httpx.stream("POST", f"{self.url}/v1/chat/completions", json=body, timeout=DEADLINE) as response:
            assert response.status_code == 200, response.read()
            yield from parsed(response)

    def stop(self) -> int:
        """SIGTERM and wait; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE)


def parsed(response: httpx.Response) -> Iterator[Any]:
    """Server-sent events of a response."""
    for line in response.iter_lines():
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)


def text_of(events: list[Any]) -> str:
    """The content that streamed events add up to."""
    deltas = (e["choices"][0].get("delta", {}) for e in events if isinstance(e, dict) and e.get("choices"))
    return "".join(delta.get("content") or "" for delta in deltas)


def chat_body(text: str, **extra: Any) -> dict[str, Any]:
    """A chat request."""
    return {"model": "glm5", "messages": [{"role": "user", "content": text}]} | extra


@dataclass
class Machines:
    """Starts stand-ins on nodes of their own and ends them all."""

    folder: Path
    servers: list[Server] = field(default_factory=list)
    count: int = 0

    def node(self, **facts: Any) -> tuple[str, Path]:
        """A new node: its address and its root directory."""
        self.count += 1
        root = self.folder / f"node-{self.count}"
        root.mkdir()
        address = next(_ADDRESSES)
        pace = {"prefill_tps": 1e6, "decode_tps": 2000, "native_tps": 2000, "load_seconds": 1} | facts.pop("pace", {})
        defaults = {"address": address, "time_scale": TIME_SCALE, "gpu_model": "H200", "vram_gb": 141, "pace": pace}
        (root / "node.json").write_text(json.dumps(defaults | facts))
        return address, root

    def model(self) -> str:
        """A GLM-5 checkpoint directory, or as much of one as the stand-ins look at."""
        folder = self.folder / "GLM-5.1-FP8"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text('{"architectures": ["GlmMoeDsaForCausalLM"]}')
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            (folder / name).write_text("{}")
        return str(folder)

    def weights(self) -> str:
        """A converted weights directory."""
        folder = self.folder / "GLM-5.1-FP8-TileRT"
        if folder.exists():
            return str(folder)  # a server may be reading it
        folder.mkdir()
        (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a_dev_0": "one.safetensors"}}')
        for name in ("one.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            (folder / name).write_text("{}")
        return str(folder)

    def command(self, program: str, *argv: object) -> list[str]:
        """As a wrapper on a node starts it: a bare interpreter and a plain file."""
        return [sys.executable, "-I", "-S", str(TWIN / f"{program}.py"), *map(str, argv)]

    def environment(self, root: Path, env: dict[str, str] | None) -> dict[str, str]:
        """What a container's process would see."""
        return {"TWIN_ROOT": str(root), "PATH": os.environ["PATH"]} | (env or {})

    def run(
        self, program: str, *argv: object, env: dict[str, str] | None = None, node: dict[str, Any] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a stand-in that is expected to end by itself."""
        _, root = self.node(**(node or {}))
        command = self.command(program, *argv)
        full = self.environment(root, env)
        return subprocess.run(command, env=full, capture_output=True, text=True, timeout=DEADLINE, check=False)

    def start(self, program: str, address: str, root: Path, port: int, *argv: object, **env: str) -> Server:
        """Start a server; it may not be ready yet."""
        log = root / f"{program}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                self.command(program, *argv),
                env=self.environment(root, env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        server = Server(process, f"http://{address}:{port}", log)
        self.servers.append(server)
        return server

    def vllm(self, *argv: object, node: dict[str, Any] | None = None, **env: str) -> Server:
        """``vllm serve`` on a new 8xH200 node."""
        address, root = self.node(**(node or {}))
        flags = ("--tensor-parallel-size", "8", "--return-tokens-as-token-ids")
        flags += () if "--served-model-name" in argv else ("--served-model-name", "glm5")
        own = {"VLLM_NIXL_SIDE_CHANNEL_HOST": address, "TILERT_PD_PROBE_ADDR": "127.67.0.1"}
        full = ("serve", self.model(), "--host", address, "--kv-cache-dtype", "fp8_ds_mla", *flags, *argv)
        return self.start("vllm_server", address, root, 8000, *full, **(own | env))

    def prefill(self, node: dict[str, Any] | None = None, **env: str) -> Server:
        """vLLM with both connectors."""
        return self.vllm("--enforce-eager", *MTP, "--kv-transfer-config", both_connectors(), node=node, **env)

    def native(self, policy: str = "fail", node: dict[str, Any] | None = None, **env: str) -> Server:
        """vLLM that fetches its KV over NIXL."""
        config = {"kv_connector": "NixlConnector", "kv_role": "kv_consumer", "kv_load_failure_policy": policy}
        return self.vllm(*MTP, "--kv-transfer-config", json.dumps(config), node=node, **env)

    def decode(self, *argv: object, node: dict[str, Any] | None = None, **env: str) -> Server:
        """TileRT's decode server on a new 8xB200 node."""
        address, root = self.node(**({"gpu_model": "B200", "vram_gb": 180} | (node or {})))
        flags = ("--engine", "tilert", "--with-mtp", "--max-seq-len", "202752", "--transport", "nixl")
        own = {"TILERT_PD_PROBE_ADDR": "127.67.0.1", "TILERT_DECODE_POLL_MS": "10"}
        full = (*flags, "--model-weights-dir", self.weights(), *argv)
        return self.start("decode_server", address, root, 5557, *full, **(own | env))

    def pd_router(self, prefill: Server, *decodes: Server, argv: tuple[object, ...] = (), **env: str) -> Server:
        """A pd_router over one prefill and some decode nodes, tokenising at vLLM unless told otherwise."""
        address, root = self.node()
        specs = [f"{decode.host}:5556:5557" for decode in decodes]
        flags = ("--vllm-url", prefill.url, "--decode", *specs, "--model-path", self.model(), "--parser", "none")
        own = {"TILERT_ROUTER_TOKENIZE": "0"}
        return self.start("pd_router", address, root, 23333, *flags, *argv, **(own | env))

    def vllm_router(self, prefills: list[Server], decodes: list[Server], *argv: object) -> Server:
        """A vllm-router over prefill and native nodes."""
        address, root = self.node()
        flags = ["--host", address, "--vllm-pd-disaggregation", "--policy", "round_robin", "--kv-connector", "nixl"]
        flags += [word for server in prefills for word in ("--prefill", server.url)]
        flags += [word for server in decodes for word in ("--decode", server.url)]
        return self.start("vllm_router", address, root, 30000, *flags, *argv)


@contextmanager
def machines_in(folder: Path) -> Iterator[Machines]:
    """Machines whose processes end with the block."""
    machines = Machines(folder)
    try:
        yield machines
    finally:
        for server in machines.servers:
            server.process.kill()
        for server in machines.servers:
            server.process.wait(DEADLINE)
