"""The SSH server of a twin node: public keys alone, real shell commands, OpenSSH's limits."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import paramiko
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from paramiko.common import (
    AUTH_FAILED,
    AUTH_SUCCESSFUL,
    OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED,
    OPEN_FAILED_CONNECT_FAILED,
    OPEN_SUCCEEDED,
)

from gpufleet.twin import layout, nodefile
from gpufleet.twin.inside import container_variables
from gpufleet.twin.session import Session, start_command, start_terminal

MAX_SESSIONS = 10
"""OpenSSH's default ``MaxSessions``: open sessions per connection."""

logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


class ReplyFirst(paramiko.Transport):
    """Starts a command after the client has been told that it may run.

    A command of a millisecond would else be over, and its channel closed, before the reply to the request for it.
    """

    start_next: Callable[[], None] | None = None

    def _send_user_message(self, data: paramiko.Message) -> None:
        super()._send_user_message(data)  # type: ignore[misc]
        if self.start_next is not None and threading.current_thread() is self:
            start, self.start_next = self.start_next, None
            start()


class Sshd:
    """What all connections of a node share."""

    def __init__(self, node: nodefile.Node) -> None:
        self.node = node
        self.allowed = {tuple(line.split()[:2]) for line in node.facts["authorized_keys"]}
        self.home = node.root / "home"
        self._inside = container_variables(node)
        self.host_key = _host_key(node)
        self._execs = 0
        self._lock = threading.Lock()
        self._transports: list[paramiko.Transport] = []
        self.sessions: set[Session] = set()

    def environment(self) -> dict[str, str]:
        """What a command starts with: the node's, nothing of ours."""
        return {
            "PATH": f"{self.node.root}/bin:{layout.HOST_PATH}",
            "HOME": str(self.home),
            "TWIN_ROOT": str(self.node.root),
            "LANG": "C.UTF-8",
            "USER": "root",
            "LOGNAME": "root",
            "SHELL": "/bin/bash",
            **self._inside,
        }

    def serve(self, listener: socket.socket) -> NoReturn:
        """Accept connections for ever."""
        while True:
            client, _ = listener.accept()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport = ReplyFirst(client)
            transport.add_server_key(self.host_key)
            self._transports = [t for t in self._transports if t.is_alive()] + [transport]
            with contextlib.suppress(paramiko.SSHException, OSError):
                transport.start_server(event=threading.Event(), server=Login(self, transport))

    def close(self) -> None:
        """Drop every connection; their commands get a hang-up."""
        for transport in self._transports:
            transport.close()
        for session in tuple(self.sessions):
            session.hang_up()

    def count_exec(self) -> bool:
        """Count one command; true when this one's connection is to be dropped (fault ``drop-connection:N``)."""
        limit = self.node.fault("drop-connection")
        with self._lock:
            self._execs += 1
            return limit is not None and self._execs == int(limit or 1)


class Login(paramiko.ServerInterface):
    """Answers for one connection: who may log in, and what the channels may ask for."""

    def __init__(self, sshd: Sshd, transport: ReplyFirst) -> None:
        self._sshd = sshd
        self._transport = transport
        self._channels: list[paramiko.Channel] = []
        self._terminals: dict[int, tuple[str, int, int]] = {}
        self._sessions: dict[int, Session] = {}

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:  # noqa: ARG002
        known = (key.get_name(), key.get_base64()) in self._sshd.allowed
        return AUTH_SUCCESSFUL if known else AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:  # noqa: ARG002
        if kind != "session":
            return OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED
        while opened := self._transport.accept(0):
            self._channels.append(opened)
        self._channels = [channel for channel in self._channels if not channel.closed]
        return OPEN_FAILED_CONNECT_FAILED if len(self._channels) >= MAX_SESSIONS else OPEN_SUCCEEDED

    def check_channel_env_request(self, channel: paramiko.Channel, name: bytes, value: bytes) -> bool:  # noqa: ARG002
        return name.startswith((b"LANG", b"LC_"))

    def check_channel_pty_request(  # noqa: PLR0917 - paramiko's signature
        self,
        channel: paramiko.Channel,
        term: bytes,
        width: int,
        height: int,
        pixelwidth: int,  # noqa: ARG002
        pixelheight: int,  # noqa: ARG002
        modes: bytes,  # noqa: ARG002
    ) -> bool:
        self._terminals[channel.get_id()] = (term.decode("ascii", "replace"), width, height)
        return True

    def check_channel_window_change_request(
        self,
        channel: paramiko.Channel,
        width: int,
        height: int,
        pixelwidth: int,  # noqa: ARG002
        pixelheight: int,  # noqa: ARG002
    ) -> bool:
        session = self._sessions.get(channel.get_id())
        if session is None or channel.get_id() not in self._terminals:
            return False
        session.resize(width, height)
        return True

    def check_channel_shell_request(self, channel: paramiko.Channel) -> bool:
        return self._start(channel, None)

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        return self._start(channel, command)

    def _start(self, channel: paramiko.Channel, command: bytes | None) -> bool:
        try:
            session = self._session(channel, command)
        except OSError:
            return False
        self._sessions[channel.get_id()] = session
        thread = threading.Thread(target=self._run, args=(channel.get_id(), session), daemon=True)
        self._transport.start_next = thread.start
        if self._sshd.count_exec():
            threading.Timer(0.05, self._transport.close).start()
        return True

    def _session(self, channel: paramiko.Channel, command: bytes | None) -> Session:
        env, home = self._sshd.environment(), self._sshd.home
        terminal = self._terminals.get(channel.get_id())
        if terminal is None:
            return start_command(channel, command if command is not None else b"exec /bin/bash", env, home)
        argv = ["/bin/bash", "-i"] if command is None else ["/bin/sh", "-c", os.fsdecode(command)]
        session = start_terminal(channel, argv, env | {"TERM": terminal[0]}, home)
        session.resize(*terminal[1:])
        return session

    def _run(self, channel_id: int, session: Session) -> None:
        self._sshd.sessions.add(session)
        session.run()
        self._sshd.sessions.discard(session)
        self._sessions.pop(channel_id, None)
        self._terminals.pop(channel_id, None)


def _host_key(node: nodefile.Node) -> paramiko.PKey:
    """The key the node proves itself with; another one from the second boot on with ``host-key-change``."""
    given = node.facts.get("host_key_file")
    path = Path(given) if given else node.root / "host_key"
    boots = node.root / ".boots"
    count = int(boots.read_text()) + 1 if boots.exists() else 1
    boots.write_text(str(count))
    if node.fault("host-key-change") is not None and count > 1:
        path = node.root / "changed_host_key"
    if not path.exists():
        path.write_bytes(_openssh(Ed25519PrivateKey.generate()))
        path.chmod(0o600)
    data = path.read_bytes()
    read: Any = serialization.load_ssh_private_key
    if b"OPENSSH" not in data:
        read = serialization.load_pem_private_key
    return paramiko.Ed25519Key(file_obj=io.StringIO(_openssh(read(data, None)).decode()))


def _openssh(key: Ed25519PrivateKey) -> bytes:
    encoding, shape = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
    return key.private_bytes(encoding, shape, serialization.NoEncryption())
