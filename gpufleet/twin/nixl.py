"""vLLM's NixlConnector: prefill keeps a request's KV, decode fetches it over the side channel."""

from __future__ import annotations

import os
import socket
import threading
import time

from gpufleet.twin import wire
from gpufleet.twin.nodefacts import NodeFacts, listen, reachable_address

LEASE_SECONDS = 480.0
"""How long prefill keeps KV that nobody fetched."""
_SOCKET_SECONDS = 10
DEFAULT_HOST = "localhost"
DEFAULT_PORT = 5600


class NixlError(Exception):
    """KV could not be fetched."""


class NixlConnector:
    """Both sides of one vLLM server.

    VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT say where peers find it. The default host is only right on a single machine:
    elsewhere a peer asks itself and meets another engine id.
    """

    def __init__(self, facts: NodeFacts, compat_hash: str) -> None:
        """Raises OSError when the side channel cannot be bound."""
        self.engine_id = _uuid()
        self.transfers = 0
        """How many requests fetched their KV from a peer."""
        self._facts = facts
        self._compat_hash = compat_hash
        self._host = os.environ.get("VLLM_NIXL_SIDE_CHANNEL_HOST", DEFAULT_HOST)
        self._port = int(os.environ.get("VLLM_NIXL_SIDE_CHANNEL_PORT", str(DEFAULT_PORT)))
        self._kept: dict[str, tuple[str, float]] = {}
        self._lock = threading.Lock()
        self._socket = listen(self._own_address(), self._port)
        threading.Thread(target=self._accept, name="nixl", daemon=True).start()

    def _own_address(self) -> str:
        address = reachable_address(self._host, self._facts)
        if address == "0.0.0.0":
            return self._facts.address
        if address != self._facts.address:
            raise OSError(99, f"Cannot assign requested address (addr='tcp://{self._host}:{self._port}')")
        return address

    def keep(self, request_id: str, text: str, tokens: int, block_size: int) -> dict[str, object]:
        """Keep the KV of a prefilled request; returns the ``kv_transfer_params`` for the decode leg."""
        now = time.monotonic()
        with self._lock:
            self._kept = {k: v for k, v in self._kept.items() if v[1] > now}
            self._kept[request_id] = (text, now + LEASE_SECONDS)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(1, 1 + -(-tokens // block_size)))],
            "remote_engine_id": self.engine_id,
            "remote_request_id": request_id,
            "remote_host": self._host,
            "remote_port": self._port,
            "tp_size": 8,
        }

    def fetch(self, params: dict[str, object]) -> str:
        """The KV that the prefill leg's parameters point to.

        Raises:
            NixlError: unreachable, another engine, incompatible, or no longer kept.
        """
        host = reachable_address(str(params.get("remote_host")), self._facts)
        try:
            port = int(str(params.get("remote_port")))
            with socket.create_connection((host, port), timeout=_SOCKET_SECONDS) as sock:
                text = self._ask(sock, params)
        except (OSError, ValueError) as error:
            raise NixlError(f"NIXL handshake with {host}:{params.get('remote_port')} failed: {error}") from error
        self.transfers += 1
        return text

    def _ask(self, sock: socket.socket, params: dict[str, object]) -> str:
        hello = wire.recv_msg(sock)
        expected = params.get("remote_engine_id")
        if hello.get("engine_id") != expected:
            raise NixlError(
                f"Remote NIXL agent engine ID mismatch. Expected {expected}, received {hello.get('engine_id')}."
            )
        if hello.get("compat_hash") != self._compat_hash:
            raise NixlError(
                f"NIXL compatibility hash mismatch. Local: {self._compat_hash}, Remote: {hello.get('compat_hash')}. "
                "Prefill and decode instances have incompatible configurations."
            )
        wire.send_msg(sock, {"read": params.get("remote_request_id")})
        reply = wire.recv_msg(sock)
        if "kv" not in reply:
            raise NixlError(str(reply.get("error")))
        return str(reply["kv"])

    def _accept(self) -> None:
        while True:
            sock, _ = self._socket.accept()
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            sock.settimeout(_SOCKET_SECONDS)
            try:
                wire.send_msg(sock, {"engine_id": self.engine_id, "compat_hash": self._compat_hash})
                wire.send_msg(sock, self._released(str(wire.recv_msg(sock).get("read"))))
            except (OSError, ValueError):
                return

    def _released(self, request_id: str) -> wire.Message:
        with self._lock:
            kept = self._kept.pop(request_id, None)
        if kept is None or kept[1] < time.monotonic():
            return {"error": f"NIXL_ERR_NOT_FOUND: the KV blocks of {request_id} have been released"}
        return {"kv": kept[0]}


def _uuid() -> str:
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
