"""The decode node's control port: who may write its KV buffer, and when a request's KV is complete.

Behaviour of tilert 0.1.6.post3, pd_vllm/receive_server.py: one slot, a done message per sender rank, tombstones for
requests nobody waits for any more.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from typing import Any

from gpufleet.twin import rdma, wire
from gpufleet.twin.nodefacts import listen, log, stamp

REQUEST_SECONDS = 120.0
"""Socket timeout, age at which a stuck slot is taken over, and life of a tombstone."""

RESERVED, TRANSFERRING, COMPLETE, CANCELLING = "reserved", "transferring", "complete", "cancelling"


class Received:
    """The request that holds the receive slot."""

    def __init__(self, rid: str, seq_len: int, generation: int) -> None:
        self.rid = rid
        self.seq_len = seq_len
        self.generation = generation
        self.state = RESERVED
        self.writers = 0
        self.done_ranks: set[int] = set()
        self.since = time.monotonic()

    @property
    def reusable(self) -> bool:
        """Whether another request may take the slot."""
        if self.state == COMPLETE:
            return True
        if self.writers:
            return False
        return self.state == CANCELLING or time.monotonic() - self.since >= REQUEST_SECONDS


class Receiver:
    """Listens on the control port and hands complete requests over in ``completed``."""

    def __init__(self, address: str, port: int, *, max_seq_len: int, layout_version: int, transport: str) -> None:
        """Raises OSError when the port is taken."""
        self.completed: queue.Queue[Received] = queue.Queue()
        self._memory = rdma.Memory(address)
        self._max_seq_len = max_seq_len
        self._ranks = set(range(wire.sender_ranks()))
        self._shards = wire.shards()
        self._hello = self._make_hello(layout_version, transport)
        self._lock = threading.Lock()
        self._current: Received | None = None
        self._tombstones: dict[str, float] = {}
        self._generation = 0
        self._socket = listen(address, port)
        threading.Thread(target=self._accept, name="control", daemon=True).start()

    def _make_hello(self, layout_version: int, transport: str) -> wire.Message:
        bases: list[int] | int = rdma.shard_bases(self._shards)
        if self._shards == 1:
            bases = rdma.shard_bases(1)[0]
        return {
            "magic": wire.MAGIC,
            "protocol_version": wire.PROTOCOL_VERSION,
            "layout_version": layout_version,
            "transport": transport,
            "max_seq_len": self._max_seq_len,
            "nixl_meta": self._memory.meta,
            "nixl_dev": 0,
            "senders": len(self._ranks),
            "kv_base": bases,
            "pe_base": bases,
            "ki_base": bases,
            "nshards": self._shards,
        }

    def kv_text(self) -> str:
        """The KV buffer as it is now, whoever wrote it."""
        layers = (
            self._memory.read(rdma.layer_address(base, layer))
            for base in rdma.shard_bases(self._shards)
            for layer in range(rdma.LAYERS_PER_SHARD)
        )
        return b"".join(layers).decode("utf-8", "replace")

    def expect(self, rid: str) -> None:
        """Somebody waits for ``rid`` again."""
        with self._lock:
            self._tombstones.pop(rid, None)

    def release(self, rid: str) -> None:
        """Nobody waits for ``rid`` any more; the slot is free once its writers have stopped."""
        with self._lock:
            now = time.monotonic()
            self._tombstones = {r: t for r, t in self._tombstones.items() if t > now}
            self._tombstones[rid] = now + REQUEST_SECONDS
            current = self._current
            if current is None or current.rid != rid:
                return
            if current.writers and current.state != COMPLETE:
                current.state = CANCELLING
            else:
                self._current = None

    def _accept(self) -> None:
        while True:
            sock, peer = self._socket.accept()
            threading.Thread(target=self._handle, args=(sock, peer), daemon=True).start()

    def _handle(self, sock: socket.socket, peer: Any) -> None:
        with sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(REQUEST_SECONDS)
            try:
                self._converse(sock)
            except (OSError, ValueError, KeyError) as error:
                _log(f"connection from {peer} failed: {error}")

    def _converse(self, sock: socket.socket) -> None:
        with self._lock:
            busy = self._current is not None and not self._current.reusable
        wire.send_msg(sock, self._hello | {"busy": busy})
        request = wire.recv_msg(sock)
        rid, rank = str(request["rid"]), int(request["rank"])
        reply = self._admit(request, rid, rank)
        wire.send_msg(sock, reply)
        if not reply["accepted"]:
            return
        try:
            if wire.recv_msg(sock).get("done"):
                self._rank_done(rid, rank, reply["generation"])
        finally:
            self._writer_left(reply["generation"])

    def _admit(self, request: wire.Message, rid: str, rank: int) -> wire.Message:
        if int(request.get("seq_len", 0)) > self._max_seq_len:
            return _refusal("seq_len exceeds max_seq_len", rid=rid, max_seq_len=self._max_seq_len)
        with self._lock:
            if self._tombstoned(rid, request.get("admission_window_s")):
                _log(f"refusing {rid} rank {rank} for now: no consumer is waiting for this request")
                return _refusal("cancelling", rid=rid, detail="no_consumer")
            refusal = self._slot_refusal(rid, rank)
            if refusal is not None:
                return refusal
            current = self._current if self._current and self._current.rid == rid else self._claim(rid, request)
            current.state = TRANSFERRING
            current.writers += 1
            return {"accepted": True, "rid": rid, "rank": rank, "generation": current.generation}

    def _tombstoned(self, rid: str, window: object) -> bool:
        until = self._tombstones.get(rid)
        now = time.monotonic()
        if until is None or until <= now:
            return False
        if isinstance(window, int | float) and window > 0:
            self._tombstones[rid] = max(until, now + window)
        return True

    def _slot_refusal(self, rid: str, rank: int) -> wire.Message | None:
        current = self._current
        if current is None:
            return None
        if current.rid == rid:
            if current.state == CANCELLING:
                return _refusal("cancelling", rid=rid)
            return _refusal("duplicate_rank", rid=rid, rank=rank) if rank in current.done_ranks else None
        if current.reusable:
            return None
        _log(f"rejecting {rid} rank {rank} (busy with {current.rid}, state={current.state}, writers={current.writers})")
        return _refusal("busy", busy_rid=current.rid, busy_state=current.state)

    def _claim(self, rid: str, request: wire.Message) -> Received:
        self._generation += 1
        self._current = Received(rid, int(request["seq_len"]), self._generation)
        _log(f"request {rid}: seq_len={self._current.seq_len} (generation {self._generation})")
        return self._current

    def _rank_done(self, rid: str, rank: int, generation: int) -> None:
        with self._lock:
            current = self._current
            if current is None or current.generation != generation or current.state == CANCELLING:
                _log(f"ignoring done from {rid} rank {rank}: the slot has moved on")
                return
            current.done_ranks.add(rank)
            _log(f"request {rid}: rank {rank} done ({len(current.done_ranks)}/{len(self._ranks)})")
            if current.done_ranks >= self._ranks:
                current.state = COMPLETE
                self.completed.put(current)
                _log(f"request {rid}: all ranks done in {1000 * (time.monotonic() - current.since):.1f} ms")

    def _writer_left(self, generation: int) -> None:
        with self._lock:
            current = self._current
            if current is None or current.generation != generation:
                return
            current.writers = max(0, current.writers - 1)
            if current.state == CANCELLING and not current.writers:
                self._current = None


def _refusal(reason: str, **extra: object) -> wire.Message:
    return {"accepted": False, "error": reason, **extra}


def _log(line: str) -> None:
    log(f"{stamp()} pd_vllm.receive {line}")
