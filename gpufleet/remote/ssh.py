"""One SSH connection per node, kept open; commands run over it from several threads at once."""

from __future__ import annotations

import logging
import select
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import paramiko
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential
from tenacity.nap import sleep_using_event

from gpufleet.domain.market import SshEndpoint
from gpufleet.errors import Interrupted, NodeFailed
from gpufleet.remote.errors import ConnectionLost, HostKeyChanged, LoginRefused
from gpufleet.remote.machine import Completed

logging.getLogger("paramiko").addHandler(logging.NullHandler())

KEEPALIVE_SECONDS = 15
_DEAD_PEER_MILLISECONDS = 45_000
"""How long sent bytes may stay unacknowledged before the kernel gives the connection up."""
_MAX_CHANNELS = 9
"""OpenSSH's MaxSessions is 10 by default; one is left for whoever else logs in over this connection."""
_POLL_MILLISECONDS = 250
_CHUNK = 65_536
_DIRECT_STDIN = 65_536
"""Input up to this size fits into the server's window and is sent without a thread of its own."""
_KEX = ("curve25519-sha256@libssh.org", "ecdh-sha2-nistp256", "diffie-hellman-group14-sha256")
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr")
_KEY_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "rsa-sha2-512", "rsa-sha2-256")
_KEY_TYPES_OF = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}


class SshMachine:
    """A `gpufleet.remote.machine.Machine` over SSH; made by `connect`."""

    def __init__(
        self,
        transport: paramiko.Transport,
        endpoint: SshEndpoint,
        name: str,
        host_key: str,
        *,
        through: SshMachine | None = None,
    ) -> None:
        self._transport = transport
        self._through = through
        self._endpoint = endpoint
        self._name = name
        self._slots = threading.BoundedSemaphore(_MAX_CHANNELS)
        self.host_key = host_key
        """What the host showed, ``ssh-ed25519 AAAA...``: to be pinned by whoever connected without a pin."""
        self.jump_host_key = through.host_key if through else None
        """The same of the host that the connection goes through."""

    @property
    def name(self) -> str:
        return self._name

    @property
    def workdir(self) -> str:
        return self._endpoint.workdir

    @property
    def alive(self) -> bool:
        """False once the connection is known to be gone."""
        return self._transport.is_active()

    def run(self, command: str, *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        """See `Machine.run`. The node itself ends the command a second after ``timeout``, connection or not."""
        deadline = time.monotonic() + timeout
        bounded = f"exec timeout -k 5 {timeout + 1:.1f} sh -c {shlex.quote(command)}"
        out, err = bytearray(), bytearray()
        with self._channel(bounded, stdin) as channel:
            for stdout, stderr in _read(channel, lambda: time.monotonic() > deadline):
                out += stdout
                err += stderr
            channel.status_event.wait(max(0.0, deadline - time.monotonic()))
            if not channel.status_event.is_set() or (not channel.eof_received and not channel.closed):
                raise ConnectionLost(f"{self._name}: a command did not end within {timeout:g} s", where=str(self))
            return Completed(self._exit_code(channel), _text(out), _text(err))

    def stream(self, command: str, *, stdin: bytes = b"", until: Callable[[], bool] | None = None) -> Iterator[bytes]:
        """See `Machine.stream`."""
        stop = until or (lambda: False)
        with self._channel(command, stdin) as channel:
            for stdout, _ in _read(channel, stop):
                if stdout:
                    yield stdout
            if not channel.eof_received and not stop():
                raise self._lost("the connection broke")

    def close(self) -> None:
        self._transport.close()
        if self._through is not None:
            self._through.close()

    def tunnel(self, host: str, port: int, timeout: float) -> paramiko.Channel:
        """A connection from this machine on to another one.

        Raises:
            ConnectionLost: it cannot be made.
        """
        try:
            return self._transport.open_channel("direct-tcpip", (host, port), ("127.0.0.1", 0), timeout=timeout)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self._lost(f"no way on to {host}:{port}: {_reason(error)}") from error

    def __str__(self) -> str:
        return f"{self._endpoint.user}@{self._endpoint.host}:{self._endpoint.port}"

    @contextmanager
    def _channel(self, command: str, stdin: bytes) -> Iterator[paramiko.Channel]:
        with self._slots:
            try:
                channel = self._transport.open_session(timeout=30)
                channel.exec_command(command)
            except (paramiko.SSHException, OSError, EOFError) as error:
                raise self._lost("no command can be started") from error
            try:
                _send(channel, stdin)
                yield channel
            finally:
                channel.close()

    def _exit_code(self, channel: paramiko.Channel) -> int:
        code = int(channel.exit_status)
        if code >= 0:
            return code
        if not channel.eof_received or not self.alive:
            raise self._lost("the connection broke while a command ran")
        return 255  # ended by a signal: paramiko does not tell which

    def _lost(self, what: str) -> ConnectionLost:
        return ConnectionLost(f"{self._name}: {what}", where=str(self), hint="run the command again: it continues")


def connect(
    endpoint: SshEndpoint,
    *,
    name: str,
    private_key_file: Path,
    pinned_host_key: str | None = None,
    timeout: float = 20.0,
) -> SshMachine:
    """Log in with this key and nothing else: no agent, no ``~/.ssh``, no password.

    Args:
        endpoint: where it names a jump host, that one is logged in to first, with the same key and a pin of its own.
        pinned_host_key: ``ssh-ed25519 AAAA...`` seen before; falls back to the endpoint's own. Without either the
            first key is trusted, and `SshMachine.host_key` is what to pin.
        timeout: seconds for each of: TCP connect, key exchange, login.

    Raises:
        ConnectionLost: nothing answers, or it is no SSH server (yet).
        LoginRefused: the host does not take the key.
        HostKeyChanged: it shows another host key than the pinned one; nothing was sent to it.
        NodeFailed: the private key cannot be read.
    """
    where = f"{endpoint.user}@{endpoint.host}:{endpoint.port}"
    pinned = pinned_host_key or endpoint.host_key
    key = _private_key(private_key_file)
    through = None
    if endpoint.jump is not None:
        through = connect(endpoint.jump, name=f"{name}'s jump host", private_key_file=private_key_file, timeout=timeout)
    try:
        return _connect(endpoint, name, where, key, pinned=pinned, through=through, timeout=timeout)
    except BaseException:
        if through is not None:
            through.close()
        raise


def _connect(
    endpoint: SshEndpoint,
    name: str,
    where: str,
    key: paramiko.PKey,
    *,
    pinned: str | None,
    through: SshMachine | None,
    timeout: float,
) -> SshMachine:
    try:
        transport = _start(_socket(endpoint, through, timeout), pinned, timeout)
    except paramiko.ssh_exception.IncompatiblePeer as error:
        raise _changed(name, where, "a key of another type") if pinned else _no_ssh(name, where, error) from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise _no_ssh(name, where, error) from error
    try:
        shown = _checked_key(transport, pinned, name, where)
        _log_in(transport, endpoint.user, key, name, where)
    except BaseException:
        transport.close()
        raise
    transport.set_keepalive(KEEPALIVE_SECONDS)
    return SshMachine(transport, endpoint, name, shown, through=through)


def wait_for_ssh(
    endpoint: SshEndpoint,
    *,
    name: str,
    private_key_file: Path,
    pinned_host_key: str | None = None,
    deadline_seconds: float,
    stop: threading.Event,
    timeout: float = 20.0,
) -> SshMachine:
    """`connect`, tried again until it works: with back-off of up to 2 s, jittered so that nodes do not move in step.

    A refused login is tried again too (a booting host installs keys late), a changed host key never.

    Raises:
        ConnectionLost, LoginRefused: the last failure, once ``deadline_seconds`` have passed.
        HostKeyChanged: at once.
        Interrupted: ``stop`` was set.
    """
    deadline = time.monotonic() + deadline_seconds

    def over(_: RetryCallState) -> bool:
        return stop.is_set() or time.monotonic() >= deadline

    retrying = Retrying(
        retry=retry_if_exception_type((ConnectionLost, LoginRefused)),
        wait=wait_random_exponential(multiplier=0.2, max=2),
        stop=over,
        sleep=sleep_using_event(stop),
        reraise=True,
    )
    try:
        return retrying(
            connect,
            endpoint,
            name=name,
            private_key_file=private_key_file,
            pinned_host_key=pinned_host_key,
            timeout=min(timeout, max(1.0, deadline_seconds)),
        )
    except (ConnectionLost, LoginRefused) as error:
        if stop.is_set():
            raise Interrupted(f"stopped while waiting for SSH on {name}") from error
        raise type(error)(
            f"{error.message} (tried for {deadline_seconds:.0f} s)", where=error.where, hint=error.hint
        ) from error


def _socket(endpoint: SshEndpoint, through: SshMachine | None, timeout: float) -> socket.socket | paramiko.Channel:
    """TCP, or a channel of another connection."""
    if through is not None:
        return through.tunnel(endpoint.host, endpoint.port, timeout)
    sock = socket.create_connection((endpoint.host, endpoint.port), timeout)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_PEER_MILLISECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _start(sock: socket.socket | paramiko.Channel, pinned: str | None, timeout: float) -> paramiko.Transport:
    """Key exchange."""
    transport = paramiko.Transport(sock)
    transport.banner_timeout = transport.auth_timeout = transport.handshake_timeout = timeout
    options = transport.get_security_options()
    options.kex, options.ciphers = _KEX, _CIPHERS
    wanted = _key_words(pinned)[0] if pinned else ""
    options.key_types = _KEY_TYPES_OF.get(wanted, (wanted,) if wanted in _KEY_TYPES else _KEY_TYPES)
    try:
        transport.start_client(timeout=timeout)
    except BaseException:
        transport.close()
        raise
    if not transport.initial_kex_done:
        transport.close()
        raise TimeoutError
    return transport


def _checked_key(transport: paramiko.Transport, pinned: str | None, name: str, where: str) -> str:
    key = transport.get_remote_server_key()
    shown = f"{key.get_name()} {key.get_base64()}"
    if pinned and _key_words(pinned) != _key_words(shown):
        raise _changed(name, where, shown)
    return shown


def _log_in(transport: paramiko.Transport, user: str, key: paramiko.PKey, name: str, where: str) -> None:
    try:
        transport.auth_publickey(user, key)
    except (paramiko.SSHException, OSError, EOFError) as error:
        answered = transport.is_active() and "timeout" not in str(error).lower()
        if not isinstance(error, paramiko.AuthenticationException) or not answered:
            raise ConnectionLost(f"{name}: the login at {where} broke: {_reason(error)}", where=where) from error
        hint = f"the public key must be in {user}'s authorized_keys there"
        raise LoginRefused(f"{name}: {where} does not take our key", where=where, hint=hint) from error


def _send(channel: paramiko.Channel, stdin: bytes) -> None:
    def send() -> None:
        with suppress(OSError, EOFError):  # the command may end without reading all of it
            channel.sendall(stdin)
            channel.shutdown_write()

    if len(stdin) <= _DIRECT_STDIN:
        send()
    else:
        threading.Thread(target=send, daemon=True, name="ssh-stdin").start()


def _read(channel: paramiko.Channel, stop: Callable[[], bool]) -> Iterator[tuple[bytes, bytes]]:
    """Both streams as they come, until both have ended or ``stop`` says so."""
    poller = select.poll()
    poller.register(channel.fileno(), select.POLLIN)
    while not stop():
        poller.poll(_POLL_MILLISECONDS)
        ended = channel.eof_received or channel.closed
        while channel.recv_ready() or channel.recv_stderr_ready():
            out = channel.recv(_CHUNK) if channel.recv_ready() else b""
            err = channel.recv_stderr(_CHUNK) if channel.recv_stderr_ready() else b""
            yield out, err
        if ended:
            return


def _private_key(path: Path) -> paramiko.PKey:
    try:
        return paramiko.PKey.from_path(path)
    except (OSError, ValueError, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
        raise NodeFailed(f"the private key cannot be read: {_reason(error)}", where=str(path)) from error


def _no_ssh(name: str, where: str, error: BaseException) -> ConnectionLost:
    return ConnectionLost(f"{name}: no SSH at {where}: {_reason(error)}", where=where)


def _key_words(key: str) -> list[str]:
    """Type and base64, without the comment."""
    return key.split()[:2]


def _changed(name: str, where: str, shown: str) -> HostKeyChanged:
    return HostKeyChanged(
        f"{name}: {where} shows another host key than the one pinned for this rental ({shown})",
        where=where,
        hint="if the host was reinstalled, give the rental back and rent anew; otherwise someone may be in between",
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _text(data: bytearray) -> str:
    return data.decode("utf-8", errors="replace")
