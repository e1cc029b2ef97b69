"""vLLM, as the gate asks it about hand-overs: one connection for each, closed by nobody before the answer is there."""

from __future__ import annotations

import asyncio

from gpufleet.gate.config import Address
from gpufleet.gate.http1 import BadHttp, Head, read_head, response_framing
from gpufleet.gate.replies import Reply
from gpufleet.gate.streams import Peer, connect

_CONNECT_S = 10.0
_PROBE_S = 1.0


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


async def ask(vllm: Peer, request: bytes, method: str) -> Reply:
    """Send a request and read the whole answer, however long it takes; AnswerLost when it does not come."""
    try:
        await vllm.send(request)
        return await _answer(vllm, method)
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, BadHttp) as error:
        raise AnswerLost(str(error) or type(error).__name__) from None
    finally:
        vllm.close()


async def _answer(vllm: Peer, method: str) -> Reply:
    head = await final_head(vllm)
    framing = response_framing(head, method)
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
