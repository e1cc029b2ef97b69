"""The HTTP side: what is no hand-over passes as it is, at the peers' pace, and ends when either side hangs up."""

from __future__ import annotations

import asyncio

from gpufleet.gate import claim as claims
from gpufleet.gate import upstream
from gpufleet.gate.config import GateConfig
from gpufleet.gate.gate import Gate
from gpufleet.gate.http1 import (
    BadHttp,
    Head,
    UntilClose,
    read_body,
    read_head,
    request_framing,
    response_framing,
    with_body,
)
from gpufleet.gate.metrics import Metrics
from gpufleet.gate.replies import Refusal, Reply, plain
from gpufleet.gate.streams import Peer
from gpufleet.gate.turnstile import ClientGone

_PIECE = 256 * 1024
_OWN = "/gate/"


class Proxy:
    """Serves client connections."""

    def __init__(self, config: GateConfig, gate: Gate, metrics: Metrics) -> None:
        self._config = config
        self._gate = gate
        self._metrics = metrics
        self._idle: set[Peer] = set()

    def close_idle(self) -> None:
        """End the connections on which no request is at work."""
        for client in self._idle:
            client.abort()

    async def serve(self, client: Peer) -> None:
        """All requests of one connection."""
        line = upstream.Line(self._config.upstream)
        try:
            while await self._exchange(client, line):
                pass
        except (OSError, asyncio.IncompleteReadError, ClientGone):
            client.abort()
        except (BadHttp, asyncio.LimitOverrunError) as error:
            client.writer.write(Refusal(400, "bad-http", f"bad request: {error}").reply().raw)
        finally:
            line.drop()

    async def _exchange(self, client: Peer, line: upstream.Line) -> bool:
        """One request; whether another may follow on this connection."""
        self._idle.add(client)
        try:
            head = await read_head(client.reader)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise
            return False
        finally:
            self._idle.discard(client)
        body = await self._body(client, head)
        try:
            reply = await self._own_answer(client, line, head, body)
        except Refusal as refusal:
            self._metrics.refusals[(("reason", refusal.reason),)] += 1
            reply = refusal.reply()
        if reply is None:
            return await self._pass_through(client, line, head, body)
        await client.send(reply.raw)
        return reply.keep_alive and head.keep_alive

    async def _body(self, client: Peer, head: Head) -> bytes:
        """The whole body: where it names a TileRT node cannot be known before its end."""
        if "100-continue" in head.tokens("expect"):
            await client.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        return await read_body(client.reader, request_framing(head))

    async def _own_answer(self, client: Peer, line: upstream.Line, head: Head, body: bytes) -> Reply | None:
        """The answer of the gate, or of vLLM to a hand-over; None when the request just passes."""
        path = head.target.split("?", 1)[0]
        if path.startswith(_OWN):
            return self._status(path)
        claim = claims.read(path, body)
        kind = "native" if claim is None else "handover"
        self._metrics.requests[(("kind", kind),)] += 1
        return None if claim is None else await self._gate.carry(head, claim, line, client.gone)

    def _status(self, path: str) -> Reply:
        if path == "/gate/metrics":
            text = self._metrics.render(self._gate.gauges())
            return plain(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")
        if path == "/gate/health":
            refusal = self._gate.refusal
            return plain(200, b"ok\n", "text/plain") if refusal is None else refusal.reply()
        return Refusal(404, "path", f"the gate has no {path}").reply()

    async def _pass_through(self, client: Peer, line: upstream.Line, head: Head, body: bytes) -> bool:
        try:
            vllm = await line.take()
        except upstream.Unreachable as error:
            refusal = Refusal(502, "vllm-unreachable", f"vLLM cannot be reached: {error}")
            self._metrics.refusals[(("reason", refusal.reason),)] += 1
            await client.send(refusal.reply().raw)
            return head.keep_alive
        watch = asyncio.ensure_future(_abort_when_gone(client, vllm))
        try:
            await vllm.send(with_body(head, body))
            return await self._copy(vllm, client, head)
        finally:
            watch.cancel()
            vllm.close()

    async def _copy(self, vllm: Peer, client: Peer, request: Head) -> bool:
        """vLLM's answer, piece by piece as it comes."""
        try:
            head = await upstream.final_head(vllm)
            framing = response_framing(head, request.method)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, BadHttp, ConnectionError) as error:
            if client.gone.is_set():
                raise ClientGone from None
            await client.send(Refusal(502, "answer-lost", f"vLLM gave no answer: {error}").reply().raw)
            return False
        if head.status == 101:
            return await _tunnel(client, vllm, head.raw)
        client.writer.write(head.raw)
        while not framing.over:
            data = await vllm.reader.read(_PIECE)
            if not data:
                if not isinstance(framing, UntilClose):
                    client.abort()
                return False
            await client.send(data[: framing.feed(data)])
        await client.writer.drain()
        return head.keep_alive and request.keep_alive


async def _abort_when_gone(client: Peer, vllm: Peer) -> None:
    """vLLM notices by its own connection that nobody wants the answer."""
    await client.gone.wait()
    vllm.abort()


async def _tunnel(client: Peer, vllm: Peer, head: bytes) -> bool:
    """After an upgrade the bytes are the peers' own affair."""
    client.writer.write(head)
    ways = [asyncio.ensure_future(_pump(vllm, client)), asyncio.ensure_future(_pump(client, vllm))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
    return False


async def _pump(source: Peer, sink: Peer) -> None:
    while data := await source.reader.read(_PIECE):
        await sink.send(data)
