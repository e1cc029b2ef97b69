"""A stand-in for RDMA between two nodes: memory that a peer writes to by address, without asking.

As with the real thing a write carries no request id: whatever lies at an address when it is read is taken.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
import threading

from gpufleet.twin.nodefacts import listen
from gpufleet.twin.wire import recv_exact

_HEADER = struct.Struct("!QI")
_CONNECT_SECONDS = 10


class Memory:
    """Registered memory of one node, open to writes from any peer that knows its metadata."""

    def __init__(self, address: str) -> None:
        self._cells: dict[int, bytes] = {}
        self._socket = listen(address, 0)
        port = self._socket.getsockname()[1]
        agent = {"agent": f"{address}:{os.getpid()}", "host": address, "port": port}
        self.meta = base64.b64encode(json.dumps(agent).encode()).decode()
        threading.Thread(target=self._accept, name="rdma", daemon=True).start()

    def read(self, address: int) -> bytes:
        """What was last written there; nothing yet reads as empty."""
        return self._cells.get(address, b"")

    def _accept(self) -> None:
        while True:
            sock, _ = self._socket.accept()
            threading.Thread(target=self._writes, args=(sock,), daemon=True).start()

    def _writes(self, sock: socket.socket) -> None:
        with sock:
            try:
                while True:
                    address, size = _HEADER.unpack(recv_exact(sock, _HEADER.size))
                    if address == 0:
                        sock.sendall(b"\x01")
                    else:
                        self._cells[address] = recv_exact(sock, size)
            except OSError:
                return


class Writer:
    """Writes into peers' memory; one connection per peer is kept open. Not shared between threads."""

    def __init__(self) -> None:
        self._peers: dict[str, socket.socket] = {}

    def write(self, meta: str, address: int, data: bytes) -> None:
        """Write and wait until it has landed.

        Raises:
            OSError: the peer cannot be reached, or is gone.
        """
        sock = self._peers.get(meta) or self._connect(meta)
        try:
            sock.sendall(_HEADER.pack(address, len(data)) + data + _HEADER.pack(0, 0))
            recv_exact(sock, 1)
        except OSError:
            self._peers.pop(meta).close()
            raise

    def _connect(self, meta: str) -> socket.socket:
        agent = json.loads(base64.b64decode(meta))
        sock = socket.create_connection((agent["host"], agent["port"]), timeout=_CONNECT_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peers[meta] = sock
        return sock


LAYERS_PER_SHARD = 2
_SHARD_BASE = 0x7F0000000000
_SHARD_STRIDE = 1 << 32
_LAYER_STRIDE = 1 << 24


def shard_bases(count: int) -> list[int]:
    """Where the receive buffer of each card begins."""
    return [_SHARD_BASE + shard * _SHARD_STRIDE for shard in range(count)]


def layer_address(base: int, layer: int) -> int:
    """Where a layer lies within a shard. It depends on the layer alone, never on the request: that is the flaw."""
    return base + layer * _LAYER_STRIDE


def cut(data: bytes, shards: int) -> list[list[bytes]]:
    """Spread ``data`` over shards and layers: ``result[shard][layer]``."""
    count = shards * LAYERS_PER_SHARD
    edges = [len(data) * i // count for i in range(count + 1)]
    pieces = [data[edges[i] : edges[i + 1]] for i in range(count)]
    return [pieces[s * LAYERS_PER_SHARD : (s + 1) * LAYERS_PER_SHARD] for s in range(shards)]
