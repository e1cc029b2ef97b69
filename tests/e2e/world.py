"""A user's machine in a folder: a fleet file, a state directory, keys, and the real CLI as a subprocess."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpufleet.providers.mock.control import stop_all

CHAT_KEY = "sk-chat-0123456789abcdef"
VIP_KEY = "sk-vip-0123456789abcdef"
BATCH_KEY = "sk-batch-0123456789abcdef"
UP_SECONDS = 180


@dataclass
class World:
    """One fleet and everything it keeps on this machine."""

    root: Path
    network: str
    """Loopback range of its mock nodes, so that several worlds live side by side."""
    fleet: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fleet = self.fleet or small_fleet(free_port())
        if self.fleet["provider"].get("use") == "mock":
            self.fleet["provider"] = {"network": self.network, **self.fleet["provider"]}
        self.write()

    @property
    def file(self) -> Path:
        return self.root / "fleet.yaml"

    @property
    def state(self) -> Path:
        return self.root / "s"

    @property
    def market(self) -> Path:
        return self.state / "mock"

    @property
    def url(self) -> str:
        return f"http://{self.fleet['router']['listen']}"

    @property
    def env(self) -> dict[str, str]:
        keys = {"GF_TEST_CHAT": CHAT_KEY, "GF_TEST_VIP": VIP_KEY, "GF_TEST_BATCH": BATCH_KEY}
        return {**os.environ, **keys, "GPUFLEET_STATE": str(self.state), "NO_COLOR": "1", "COLUMNS": "80"}

    def write(self) -> None:
        """Put the fleet on disk."""
        self.file.write_text(yaml.safe_dump(self.fleet, sort_keys=False))

    def start(self, *args: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start ``gpufleet ARGS`` and go on."""
        return subprocess.Popen(
            [sys.executable, "-m", "gpufleet", *args],
            cwd=self.root,
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, *args: str, timeout: float = UP_SECONDS, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """``gpufleet ARGS``, to its end."""
        process = self.start(*args, env=env)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"gpufleet {args} did not end in {timeout} s\n{out}\n{err}") from None
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def ok(self, *args: str) -> str:
        """``gpufleet ARGS``, which must succeed; its stdout."""
        done = self.run(*args)
        assert done.returncode == 0, f"gpufleet {args}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def json(self, *args: str) -> Any:
        """``gpufleet ARGS --output json``, which must succeed."""
        return json.loads(self.ok(*args, "--output", "json"))

    def processes(self) -> list[int]:
        """Everything that runs for this world, by its state directory in command line or environment."""
        return [pid for pid in _pids() if pid != os.getpid() and _belongs(pid, str(self.state))]

    def clean_up(self) -> None:
        """End whatever a test left."""
        stop_all(self.market)
        for pid in self.processes():
            _kill(pid)


def small_fleet(port: int, *, cells: int = 2, **provider: Any) -> dict[str, Any]:
    """Some cells and a native node, with fast clocks."""
    return {
        "name": "test",
        "provider": {"use": "mock", "time_scale": 8000, "seed": 1, **provider},
        "pools": {
            "prefill": {"gpu": "H200:8", "count": cells},
            "decode": {"gpu": "B200:8", "count": cells},
            "native": {"gpu": "H200:8", "count": 1},
        },
        "router": {
            "listen": f"127.0.0.1:{port}",
            "channels": {
                "chat": {"class": "interactive", "key": "env:GF_TEST_CHAT"},
                "vip": {"class": "interactive", "key": "env:GF_TEST_VIP", "priority": 10},
                "batch": {"class": "batch", "key": "env:GF_TEST_BATCH"},
            },
        },
    }


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def eventually(check: Callable[[], Any], *, within: float = 30.0, what: str = "it") -> Any:
    """Poll until ``check`` gives something true."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if found := check():
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what} did not happen within {within} s")


@contextmanager
def world(root: Path, network: str, fleet: dict[str, Any] | None = None) -> Iterator[World]:
    """A world that leaves nothing behind."""
    made = World(root, network, fleet or {})
    try:
        yield made
    finally:
        made.clean_up()


def _pids() -> list[int]:
    return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdecimal()]


def _belongs(pid: int, mark: str) -> bool:
    """HAProxy and jobs name the state directory on their command line, nodes in TWIN_ROOT."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{mark}/".encode() in line or f"TWIN_ROOT={mark}/".encode() in environment


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
