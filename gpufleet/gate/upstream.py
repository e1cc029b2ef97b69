"""vLLM, as the gate asks it about hand-overs: one connection for each, closed by nobody before the answer is there."""

from __future__ import annotations

import asyncio
import time

from gpufleet.gate.config import Address
from gpufleet.gate.http1 import BadHttp, Head, read_head, response_framing
from gpufleet.gate.replies import Reply
from gpufleet.gate.streams import Peer, connect

_CONNECT_S = 10.0
_PROBE_S = 1.0
_FRESH_S = 1.0
"""A connection that has been idle for longer may be about to be closed by vLLM."""


class Unreachable(Exception):
    """vLLM does not accept connections: nothing was sent, and nothing runs there."""


class AnswerLost(Exception):
    """The connection broke before the answer was complete: vLLM may still run the request."""


async def reach(address: Address) -> Peer:
    """Connect to vLLM; Unreachable when that fails."""
    try:
        return await connect(address.host, address.port, _CONNECT_S)
    except OSError as error:
        raise Unreachable(str(error) or "no answer") from None


class Line:
    """The way of one client's connection to vLLM, opened while the client still speaks: that saves it the wait."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._opened = time.monotonic()
        self._first: asyncio.Task[Peer] | None = asyncio.ensure_future(reach(address))

    async def take(self) -> Peer:
        """A connection for one request; Unreachable when there is none."""
        first, self._first = self._first, None
        if first is not None:
            peer = await first
            if not peer.gone.is_set() and time.monotonic() - self._opened < _FRESH_S:
                return peer
            peer.close()
        return await reach(self._address)

    def drop(self) -> None:
        """Close what was never taken."""
        if self._first is not None and not self._first.cancel() and self._first.exception() is None:
            self._first.result().close()


async def ask(vllm: Peer, request: bytes) -> Reply:
    """Send a request and read the whole answer, however long it takes; AnswerLost when it does not come."""
    try:
        await vllm.send(request)
        return await _answer(vllm)
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, BadHttp) as error:
        raise AnswerLost(str(error) or type(error).__name__) from None
    finally:
        vllm.close()


async def _answer(vllm: Peer) -> Reply:
    head = await final_head(vllm)
    framing = response_framing(head, "POST")
    raw = bytearray(head.raw)
    while not framing.over:
        data = await vllm.reader.read(65536)
        if not data:
            if "content-length" in {name.lower() for name, _ in head.fields} or head.tokens("transfer-encoding"):
                raise AnswerLost("the answer was cut")
            return Reply(head.status, bytes(raw), keep_alive=False)
        raw += data[: framing.feed(data)]
    return Reply(head.status, bytes(raw), keep_alive=head.keep_alive)


async def final_head(vllm: Peer) -> Head:
    """The head of the answer proper, after those that only say it will come."""
    while (head := await read_head(vllm.reader)).status in (100, 102, 103):
        pass
    return head


async def refuses(address: Address) -> bool:
    """Whether nothing listens at vLLM's port: whatever listens there later is another process, with new buffers."""
    try:
        peer = await connect(address.host, address.port, _PROBE_S)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    peer.abort()
    return False
