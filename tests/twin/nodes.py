"""Twin nodes for tests: a root directory, programs run in it, an SSH server on it. Everything started is ended."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko

from gpufleet.twin import layout

_HOSTS = itertools.count(os.getpid() % 200 * 256 + 2)
DEADLINE = 20.0


def next_address() -> str:
    """A loopback address that no other test of this run uses."""
    number = next(_HOSTS)
    return f"127.66.{number // 256 % 256}.{number % 256}"


def make_root(root: Path, **facts: Any) -> Path:
    """A node's root, laid out; it simulates time a hundred thousand times as fast unless told otherwise."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "node.json").write_text(json.dumps({"time_scale": 100_000} | facts))
    layout.prepare_root(root, facts)
    return root


def run(root: Path, *argv: str, stdin: str = "", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program as a shell on the node would."""
    path = f"{root}/bin:{layout.HOST_PATH}"
    full = {"PATH": path, "HOME": f"{root}/home", "LANG": "C.UTF-8"} | (env or {})
    # which of the machine's own programs and the node's stand-ins is meant is decided by the node's PATH
    return subprocess.run(
        ["/usr/bin/env", *argv], env=full, input=stdin, capture_output=True, text=True, check=False, timeout=60
    )


def docker(root: Path, *argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run docker on the node."""
    return run(root, "docker", *argv, stdin=stdin)


def end_all(root: Path) -> None:
    """Kill every process of the node."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"TWIN_ROOT={root}".encode() in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)


def processes(root: Path, word: str) -> list[int]:
    """Processes of the node with ``word`` among their arguments."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            ours = f"TWIN_ROOT={root}".encode() in (folder / "environ").read_bytes().split(b"\0")
            if ours and word.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def eventually(check: Any, what: str = "it") -> Any:
    """The first true answer of ``check``, asked until a deadline."""
    end = time.monotonic() + DEADLINE
    while not (answer := check()):
        assert time.monotonic() < end, f"{what} did not happen in {DEADLINE} s"
        time.sleep(0.02)
    return answer


class SshNode:
    """A node that serves SSH."""

    def __init__(self, root: Path, **facts: Any) -> None:
        self.root = root
        self.key = paramiko.Ed25519Key.from_private_key_file(str(_key_file(root.parent)))
        self.address = next_address()
        self.facts = {"address": self.address, "ssh_port": 2222} | facts
        self.facts["authorized_keys"] = [f"{self.key.get_name()} {self.key.get_base64()} tests"]
        make_root(root, **self.facts)
        self.process: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        """Start the node's process."""
        env = os.environ | {"TWIN_ROOT": str(self.root)}
        self.process = subprocess.Popen([sys.executable, "-m", "gpufleet.twin.node", str(self.root)], env=env)

    def wait_for_ssh(self) -> None:
        """Wait until it listens."""

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex((self.address, 2222)) == 0

        eventually(listens, "listening")

    def connect(self) -> paramiko.SSHClient:
        """Log in."""
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        client.connect(self.address, 2222, "root", pkey=self.key, look_for_keys=False, allow_agent=False, timeout=20)
        return client

    def shut_down(self) -> None:
        """End the node's process as the mock does, and whatever runs on it."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(DEADLINE)
        end_all(self.root)


def _key_file(folder: Path) -> Path:
    path = folder / "id_ed25519"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


@contextlib.contextmanager
def running_node(root: Path, **facts: Any) -> Iterator[SshNode]:
    """A node that is up, and gone afterwards."""
    node = SshNode(root, **facts)
    try:
        node.boot()
        node.wait_for_ssh()
        yield node
    finally:
        node.shut_down()
