"""A real, unprivileged OpenSSH server on a loopback address of its own."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpufleet.domain.market import SshEndpoint

SSHD = "/usr/sbin/sshd"
_numbers = itertools.count(os.getpid() % 200 * 100)


def write_key(path: Path) -> str:
    """A new private key in a file; returns the public half."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    path.write_bytes(private)
    path.chmod(0o600)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return public.decode()


@dataclass
class Sshd:
    """A running server."""

    root: Path
    host: str
    port: int
    host_key: str
    process: subprocess.Popen[bytes]

    @property
    def endpoint(self) -> SshEndpoint:
        user = os.environ.get("USER") or "root"
        return SshEndpoint(self.host, self.port, user, workdir=str(self.root / "work"))

    def drop_connections(self) -> None:
        """Kill every session of this server, as a network that breaks does."""
        for pid in _descendants(self.process.pid):
            if _name(pid).startswith("sshd"):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)


def start_sshd(root: Path, authorized: str, *, port: int | None = None, host: str | None = None) -> Sshd:
    number = next(_numbers)
    host = host or f"127.68.{number // 250 % 250}.{number % 250 + 1}"
    root.mkdir(parents=True, exist_ok=True)
    host_key = write_key(root / "host_key")
    (root / "authorized_keys").write_text(authorized + "\n")
    port = port or _free_port(host)
    config = root / "sshd_config"
    config.write_text(
        f"ListenAddress {host}\nPort {port}\nHostKey {root}/host_key\nPidFile none\nUsePAM no\n"
        f"AuthorizedKeysFile {root}/authorized_keys\nStrictModes no\nPasswordAuthentication no\n"
        f"PermitRootLogin yes\nMaxStartups 100\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    process = subprocess.Popen(
        [SSHD, "-D", "-f", str(config), "-E", str(root / "sshd.log")],
        stdin=subprocess.DEVNULL,
    )
    wait_for_port(host, port)
    return Sshd(root, host, port, host_key, process)


def wait_for_port(host: str, port: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection((host, port), 1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def _free_port(host: str) -> int:
    with socket.socket() as sock:
        sock.bind((host, 0))
        return int(sock.getsockname()[1])


def _descendants(pid: int) -> list[int]:
    try:
        children = [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [p for child in children for p in (child, *_descendants(child))]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""
