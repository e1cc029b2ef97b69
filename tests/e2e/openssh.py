"""Hosts behind real OpenSSH servers: one per loopback address, with stand-ins for the programs that need GPUs."""

from __future__ import annotations

import getpass
import itertools
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpufleet.twin import layout
from tests.e2e.world import World, eventually, free_port, small_fleet
from tests.remote.sshd import SSHD, wait_for_port, write_key

PORT = 2222
ROLES = ("H200", "H200", "B200", "B200", "H200")
"""GPUs of the hosts of a fleet of two cells and a native node."""
ONE_CELL = ("H200", "B200", "H200")
"""Those of one cell and a native node."""
"""What `small_fleet` needs: two prefill, two decode, one native."""
VRAM_GB = {"H200": 141, "B200": 180}
_addresses = (f"127.90.{os.getpid() % 254 + 1}.{n % 254 + 1}" for n in itertools.count())


@dataclass
class Host:
    """One machine that somebody owns: it is there before gpufleet comes, and stays after it has gone."""

    root: Path
    address: str
    gpu: str
    authorized: str
    host_key: str = ""
    server: subprocess.Popen[bytes] | None = None

    @property
    def listed(self) -> dict[str, Any]:
        """Its entry in the fleet file."""
        return {
            "host": self.address,
            "port": PORT,
            "user": getpass.getuser(),
            "key": "file:login_key",
            "workdir": str(self.workdir),
            "gpu": f"{self.gpu}:8",
        }

    @property
    def workdir(self) -> Path:
        return self.root / "work"

    @property
    def holder(self) -> Path:
        """Names who leased the host."""
        return self.workdir / "lease" / "holder"

    @property
    def alive(self) -> bool:
        """Whether it still takes logins."""
        return self.server is not None and self.server.poll() is None

    def start(self) -> None:
        """Start the SSH server; the host key is made with the first start."""
        if not self.host_key:
            self.host_key = write_key(self.root / "host_key")
        (self.root / "authorized_keys").write_text(self.authorized + "\n")
        config = self.root / "sshd_config"
        config.write_text(
            f"ListenAddress {self.address}\nPort {PORT}\nHostKey {self.root}/host_key\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {self.root}/authorized_keys\nStrictModes no\nPasswordAuthentication no\n"
            "PermitRootLogin yes\n"
            f"SetEnv PATH={self.root}/bin:{layout.HOST_PATH} TWIN_ROOT={self.root} HOME={self.root}/home\n"
        )
        Path("/run/sshd").mkdir(exist_ok=True)
        self.server = subprocess.Popen(
            [SSHD, "-D", "-f", str(config), "-E", str(self.root / "sshd.log")], stdin=subprocess.DEVNULL
        )
        wait_for_port(self.address, PORT)

    def stop(self) -> None:
        """Take the host off the network, its sessions too."""
        if self.server is not None:
            self.server.terminate()
            self.server.wait(10)
            self.server = None

    @contextmanager
    def rekeyed(self) -> Iterator[None]:
        """Another machine answers at the address, or so it seems: it has a host key of its own."""
        known = self.root / "host_key.known"
        self.stop()
        (self.root / "host_key").rename(known)
        write_key(self.root / "host_key")
        self.start()
        try:
            yield
        finally:
            self.stop()
            known.replace(self.root / "host_key")
            self.start()

    def clean_up(self) -> None:
        """End the server and everything else that runs there."""
        self.stop()
        for pid in self.processes():
            _kill(pid)

    def processes(self) -> list[int]:
        """What runs on the host, the server and its own sessions left out."""
        mark = f"TWIN_ROOT={self.root}".encode()
        return [pid for pid in _pids() if mark in _environment(pid)]

    def finished_steps(self) -> dict[str, int]:
        """Steps that are done on the host, by job, and when each was (nanoseconds)."""
        found = self.workdir.glob("jobs/*/done/*")
        return {str(path.relative_to(self.workdir)): path.stat().st_mtime_ns for path in found}


@dataclass
class Lab:
    """Some hosts and the key that logs in to them."""

    root: Path
    hosts: list[Host] = field(default_factory=list)

    def add(self, gpu: str, **facts: Any) -> Host:
        """A host more; ``facts`` as in a twin node's ``node.json``."""
        if not (self.root / "login_key").exists():
            (self.root / "login_key.pub").write_text(write_key(self.root / "login_key"))
        host = Host(
            root=self.root / f"h{len(self.hosts)}",
            address=next(_addresses),
            gpu=gpu,
            authorized=(self.root / "login_key.pub").read_text(),
        )
        host.root.mkdir()
        spec = {"address": host.address, "time_scale": 8000, "gpu_model": gpu, "vram_gb": VRAM_GB[gpu], **facts}
        (host.root / "node.json").write_text(json.dumps(spec))
        layout.prepare_root(host.root, spec)
        self.hosts.append(host)
        host.start()
        return host

    def fleet(self, name: str = "test", hosts: list[Host] | None = None, *, cells: int = 2) -> dict[str, Any]:
        """A fleet file that leases these hosts (all of them unless told otherwise)."""
        listed = [host.listed for host in hosts or self.hosts]
        return {**small_fleet(free_port(), cells=cells), "name": name, "provider": {"use": "ssh", "hosts": listed}}

    def operator(self, folder: str, fleet: dict[str, Any]) -> World:
        """Somebody with a fleet file and a state directory of their own."""
        root = self.root / folder
        root.mkdir()
        (root / "login_key").write_text((self.root / "login_key").read_text())
        (root / "login_key").chmod(0o600)
        return World(root, "", fleet)


@contextmanager
def lab(root: Path, gpus: tuple[str, ...] = ROLES) -> Iterator[Lab]:
    """Hosts that leave nothing behind."""
    made = Lab(root)
    try:
        for gpu in gpus:
            made.add(gpu)
        yield made
    finally:
        for host in made.hosts:
            host.clean_up()


def nothing_runs(hosts: list[Host]) -> None:
    """Wait until the hosts are as idle as they were."""
    eventually(lambda: not any(host.processes() for host in hosts), what="the hosts are idle")


def _pids() -> list[int]:
    return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdecimal()]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
