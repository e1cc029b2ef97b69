"""Carries the control connections of one request's ranks to its decode node, byte for byte, and reads along.

Each hand-over has a port of its own, so that a rank which comes late finds nobody there instead of another request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from gpufleet.gate import wire
from gpufleet.gate.config import Address
from gpufleet.gate.handover import Handover
from gpufleet.gate.replies import Refusal
from gpufleet.gate.streams import Listener, Peer, connect

_BROKEN = (OSError, EOFError, ValueError, KeyError, TypeError)
"""A peer that closes or talks nonsense; IncompleteReadError is an EOFError, BadMessage a ValueError."""


class Relay:
    """Listens for the ranks of one hand-over; may do so before it is known which."""

    def __init__(self, host: str, connect_s: float) -> None:
        self._host = host
        self._connect_s = connect_s
        self._handover: Handover | None = None
        self._listener = Listener(self._serve)
        self._refusable: set[asyncio.Task[None]] = set()
        self.address = Address(host, 0)

    async def open(self, avoid: deque[int]) -> None:
        """Listen on a port not in ``avoid`` and add it there. OSError when the host is not this machine's."""
        unsuitable = []
        while (port := await self._listener.open(self._host, 0)) in avoid:
            unsuitable.append(self._listener)
            self._listener = Listener(self._serve)
        for listener in unsuitable:
            listener.close()
        avoid.append(port)
        self.address = Address(self._host, port)

    def assign(self, handover: Handover) -> None:
        """From now on the ranks that come are those of ``handover``."""
        self._handover = handover
        handover.on_revoke.append(self._shut_out)

    def close(self) -> None:
        """Accept no more ranks."""
        self._listener.close()

    def _shut_out(self) -> None:
        """Cut the ranks that have not been admitted; those to come find the port closed."""
        self._listener.close()
        for task in self._refusable - {asyncio.current_task()}:
            task.cancel()

    async def _serve(self, rank_side: Peer) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._refusable.add(task)
        try:
            if self._handover is not None and not self._handover.revoked:
                await self._connected(self._handover, rank_side, task)
        finally:
            self._refusable.discard(task)

    async def _connected(self, handover: Handover, rank_side: Peer, task: asyncio.Task[None]) -> None:
        node = handover.node
        try:
            decode_side = await connect(node.host, node.port, self._connect_s)
        except OSError as error:
            why = str(error) or "no answer"
            handover.fail(Refusal(503, "unreachable", f"decode node {node} cannot be reached: {why}"))
            return
        try:
            rank = await _handshake(handover, rank_side, decode_side)
            if rank is not None:
                self._refusable.discard(task)
                await _transfer(handover, rank, rank_side, decode_side)
        finally:
            decode_side.close()


async def _handshake(handover: Handover, rank_side: Peer, decode_side: Peer) -> int | None:
    """Up to the node's answer; the rank's number if it was let through with a yes."""
    stage = f"decode node {handover.node} sent no hello"
    try:
        hello = await wire.read_frame(decode_side.reader)
        handover.hello(hello.message.get("senders"))
        await rank_side.send(hello.raw)
        stage = f"a rank did not like the hello of decode node {handover.node}; vLLM's log says what differs"
        asked = await wire.read_frame(rank_side.reader)
        rank = int(asked.message["rank"])
        if not handover.asks(str(asked.message["rid"]), asked.message.get("seq_len")):
            return None
        stage = f"decode node {handover.node} did not answer rank {rank}"
        await decode_side.send(asked.raw)
        answer = await wire.read_frame(decode_side.reader)
        if answer.message.get("accepted"):
            return _let_through(handover, rank, answer, rank_side)
        await rank_side.send(answer.raw)
    except _BROKEN:
        handover.fail(Refusal(503, "handshake", stage))
        return None
    handover.refused(rank, str(answer.message.get("error")))
    return None


def _let_through(handover: Handover, rank: int, answer: wire.Frame, rank_side: Peer) -> int | None:
    """Without an await between the check and the write, so that nothing can be revoked in between."""
    if not handover.admit(rank):
        return None
    rank_side.writer.write(answer.raw)
    return rank


async def _transfer(handover: Handover, rank: int, rank_side: Peer, decode_side: Peer) -> None:
    """Until the rank's own connection ends: what the decode node does meanwhile says nothing about the rank."""
    try:
        with suppress(*_BROKEN):
            done = await wire.read_frame(rank_side.reader)
            if done.message.get("done"):
                await _done(handover, rank, done, decode_side)
        if not handover.finished(rank):
            await rank_side.gone.wait()
    finally:
        handover.left(rank)


async def _done(handover: Handover, rank: int, done: wire.Frame, decode_side: Peer) -> None:
    if decode_side.gone.is_set():
        why = f"decode node {handover.node} hung up before rank {rank} was done"
        handover.fail(Refusal(503, "decode-gone", why))
    handover.done(rank)
    await decode_side.send(done.raw)
