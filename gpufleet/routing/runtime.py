"""HAProxy's runtime socket: who is up, who is busy, and taking servers out of and back into service."""

from __future__ import annotations

import csv
import shlex
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpufleet.routing.errors import RouterGone, RouterRefused
from gpufleet.routing.haproxy import SOCKET_FILE
from gpufleet.routing.routes import NATIVE, TILERT

_SERVER_ROW = "2"
_COUNTS = ("scur", "qcur", "stot")
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class ServerStat:
    """One server as HAProxy sees it."""

    name: str
    backend: str
    """``tilert`` or ``native``."""
    status: str
    """HAProxy's word: ``UP``, ``DOWN``, ``DRAIN``, ``MAINT``, ..."""
    active: int
    """Requests it serves now."""
    queued: int
    """Requests that wait for this very server; those that wait for any cell are counted by `RuntimeApi.queued`."""
    total: int
    """Requests it was given since HAProxy started."""

    @property
    def up(self) -> bool:
        """True when it would get the next request."""
        return self.status == "UP"


Ask = Callable[[str], str]
"""Sends one command to the socket and returns the answer; raises `RouterGone`."""


class RuntimeApi:
    """Commands to a running HAProxy.

    Args:
        socket: its path on this machine, or what carries a command to a router elsewhere (see `shell_command`).
    """

    def __init__(self, socket: Path | Ask) -> None:
        self._ask = _unix_socket(socket) if isinstance(socket, Path) else socket

    def servers(self) -> list[ServerStat]:
        """Cells and native servers, one row per backend they stand in.

        Raises:
            RouterGone: HAProxy does not answer.
        """
        rows = csv.DictReader(self._ask("show stat").lstrip("# ").splitlines())
        return [
            ServerStat(row["svname"], row["pxname"], row["status"].split()[0], *(int(row[c] or 0) for c in _COUNTS))
            for row in rows
            if row["type"] == _SERVER_ROW and row["pxname"] in {TILERT, NATIVE}
        ]

    def queued(self, backend: str = TILERT) -> int:
        """Requests that wait for a server of this backend; 0 when there is no such backend.

        Raises:
            RouterGone: HAProxy does not answer.
        """
        rows = csv.DictReader(self._ask("show stat").lstrip("# ").splitlines())
        mine = (row for row in rows if row["pxname"] == backend and row["svname"] == "BACKEND")
        return sum(int(row["qcur"] or 0) for row in mine)

    def drain(self, name: str) -> None:
        """No new requests to this server; what it serves now ends on its own.

        Raises:
            RouterGone: HAProxy does not answer.
            RouterRefused: it knows no server of this name.
        """
        self._set_state(name, "drain")

    def ready(self, name: str) -> None:
        """Take the server back into service.

        Raises:
            RouterGone: HAProxy does not answer.
            RouterRefused: it knows no server of this name.
        """
        self._set_state(name, "ready")

    def info(self) -> dict[str, str]:
        """``show info``: version, uptime, connections.

        Raises:
            RouterGone: HAProxy does not answer.
        """
        lines = self._ask("show info").splitlines()
        return {key: value.strip() for key, colon, value in (line.partition(":") for line in lines) if colon}

    def _set_state(self, name: str, state: str) -> None:
        backends = [s.backend for s in self.servers() if s.name == name and s.backend in {TILERT, NATIVE}]
        if not backends:
            raise RouterRefused(f"the router has no server {name}")
        for backend in backends:
            answer = self._ask(f"set server {backend}/{name} state {state}").strip()
            if answer:
                raise RouterRefused(f"the router did not set {name} to {state}: {answer}")


def _unix_socket(path: Path) -> Ask:
    def ask(command: str) -> str:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
                channel.settimeout(_TIMEOUT_S)
                channel.connect(str(path))
                channel.sendall(f"{command}\n".encode())
                return b"".join(iter(lambda: channel.recv(65536), b"")).decode(errors="replace")
        except OSError as error:
            raise gone(str(path), str(error)) from error

    return ask


def shell_command(directory: str, command: str) -> str:
    """The same for a HAProxy on a node: a shell line whose stdout is the answer and whose failure means it is gone."""
    script = (
        "import socket,sys;s=socket.socket(socket.AF_UNIX);s.settimeout(10);s.connect(sys.argv[1]);"
        "s.sendall((sys.argv[2]+'\\n').encode());"
        "[sys.stdout.write(b.decode(errors='replace')) for b in iter(lambda:s.recv(65536),b'')]"
    )
    return shlex.join(["python3", "-c", script, f"{directory}/{SOCKET_FILE}", command])


def gone(path: str, reason: str) -> RouterGone:
    """The error for a router that does not answer."""
    return RouterGone(
        f"the router does not answer ({reason})", where=path, hint="gpufleet up starts it again; its log is beside it"
    )
