"""The HTTP side of the pd_router stand-in: a prefill leg, a decode leg, and their errors as the real one words them."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, NamedTuple

from gpufleet.twin.capabilities import CapabilityError
from gpufleet.twin.httpd import SSE_DONE, Handler, Reply, Request, Response, Stream, json_response, routes, sse
from gpufleet.twin.nodefacts import log
from gpufleet.twin.pd_gate import GatedRequest, gate
from gpufleet.twin.pd_pool import Lease, Pool
from gpufleet.twin.pd_prefill import CHAT, COMPLETIONS, Prefill, Prefilled, PrefillFailed, http_timeout, sampling
from gpufleet.twin.pd_reader import STATUS_OF, Reader
from gpufleet.twin.upstream import OpenAnswer, UpstreamError, call

BUSY_RETRY_SECONDS = 0.5
_FORWARDED = ("temperature", "top_p", "top_k", "repetition_penalty", "presence_penalty", "ignore_eos")


class Context(NamedTuple):
    """How the router was started."""

    pool: Pool
    prefill: Prefill
    tokenizer: bool
    force_include_usage: bool


class Failed(Exception):
    """The request ends with ``response``."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


class _Started(NamedTuple):
    """A request whose decode node has begun to answer."""

    lease: Lease
    prefilled: Prefilled
    answer: OpenAnswer
    prefill_ms: float


class PdApp:
    """One vLLM server in front, decode nodes behind."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def handler(self) -> Handler:
        """No /v1/models and no /metrics, as in the real one."""
        return routes(
            {
                ("GET", "/health"): self._health,
                ("GET", "/pool_status"): self._pool_status,
                ("POST", CHAT): self._chat,
                ("POST", COMPLETIONS): self._completions,
            }
        )

    def _health(self, _: Request) -> Reply:
        free = sum(not node.busy for node in self._context.pool.nodes)
        return json_response({"status": "ok", "decode_free": free})

    def _pool_status(self, _: Request) -> Reply:
        status: dict[str, Any] = {
            "nodes": [{"host": node.host, "busy": node.busy} for node in self._context.pool.nodes]
        }
        tokenizing = self._context.prefill.status()
        return json_response(status if tokenizing is None else status | {"router_tokenize": tokenizing})

    def _chat(self, request: Request) -> Reply:
        return self._answer(request, CHAT)

    def _completions(self, request: Request) -> Reply:
        return self._answer(request, COMPLETIONS)

    def _answer(self, request: Request, path: str) -> Reply:
        try:
            body = request.json()
        except ValueError:
            return Response(500, b"Internal Server Error", "text/plain; charset=utf-8")
        stream = bool(body.get("stream"))
        if stream and path == COMPLETIONS:
            return json_response({"error": "streaming is supported on /v1/chat/completions"}, 400)
        context = self._context
        try:
            gated = gate(body, context.pool.capabilities(), chat=path == CHAT, tokenizer=context.tokenizer)
        except CapabilityError as error:
            return json_response(error.payload(), error.status)
        lease = context.pool.acquire()
        if lease is None:
            return json_response({"error": _busy(context.pool.queue_timeout)}, 429)
        return self._leased(request, path, body, gated, lease, stream=stream)

    def _leased(
        self, request: Request, path: str, body: dict[str, Any], gated: GatedRequest, lease: Lease, *, stream: bool
    ) -> Reply:
        try:
            started = self._start(request, path, body, gated, lease, stream=stream)
            if stream:
                return Stream(self._events(request, body, gated, started))
            return self._whole(gated, started)
        except (Failed, PrefillFailed) as failure:
            lease.release()
            return failure.response
        except (UpstreamError, LookupError, TypeError, ValueError) as error:
            lease.release()
            log(f"pd request failed: {error}")
            return json_response({"error": str(error)}, 502)

    def _start(
        self, request: Request, path: str, body: dict[str, Any], gated: GatedRequest, lease: Lease, *, stream: bool
    ) -> _Started:
        begun = time.monotonic()
        prefilled = self._context.prefill.run(path, body, lease.node, gated.top_logprobs)
        spent = round(1000 * (time.monotonic() - begun), 1)
        lease.rid = prefilled.rid
        leg = _decode_leg(body, gated, prefilled, stream=stream or bool(gated.stop))
        lease.dispatched = True
        answer = _open_decode(request, lease, leg, watch=stream)
        return _Started(lease, prefilled, answer, spent)

    def _whole(self, gated: GatedRequest, started: _Started) -> Reply:
        """A reply in one piece. Nobody looks whether the client is still there."""
        reader = Reader(started.prefilled.rid, gated.stop)
        with started.answer:
            if gated.stop:
                for line in started.answer.lines():
                    reader.feed(line)
                    if reader.finished:
                        break
            else:
                reader.feed_whole(started.answer.read().json() or {})
        reader.close()
        started.lease.release(terminated=reader.terminated)
        if reader.error is not None:
            return json_response(reader.error, reader.error_status)
        return json_response(self._envelope(gated, started, reader))

    def _envelope(self, gated: GatedRequest, started: _Started, reader: Reader) -> dict[str, Any]:
        text = reader.text if self._context.tokenizer else None
        choice: dict[str, Any] = {"index": 0, "finish_reason": reader.finish_reason, "logprobs": None}
        choice["stop_reason"] = reader.stop_reason
        if gated.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice |= {"text": text, "token_ids": reader.tokens}
        return {
            "id": started.prefilled.reply["id"],
            "object": "chat.completion" if gated.chat else "text_completion",
            "created": int(time.time()),
            "model": started.prefilled.reply.get("model"),
            "choices": [choice],
            "usage": _usage(started.prefilled, reader),
            "pd_timing_ms": {"prefill": started.prefill_ms, **reader.timing},
        }

    def _events(
        self, request: Request, body: dict[str, Any], gated: GatedRequest, started: _Started
    ) -> Generator[bytes]:
        """The stream. An error after its head cannot be a status any more: it is an event, then [DONE]."""
        reader = Reader(started.prefilled.rid, gated.stop)
        chunks = _Chunks(started.prefilled)
        try:
            yield chunks.delta({"role": "assistant"})
            if not self._context.tokenizer:
                return
            for line in started.answer.lines():
                if request.gone():
                    log(f"client disconnected, cancelling {reader.rid}")
                    return
                text = reader.feed(line)
                if text:
                    yield chunks.delta({"content": text})
                if reader.finished:
                    break
            yield from self._ending(body, started, reader, chunks)
        except UpstreamError as error:
            problem = {"error": f"stream failed: {error}", "error_type": "decode_stream_failed", "rid": reader.rid}
            yield from chunks.failed(problem)
        finally:
            started.lease.release(terminated=reader.terminated)
            with started.answer:
                pass

    def _ending(self, body: dict[str, Any], started: _Started, reader: Reader, chunks: _Chunks) -> Generator[bytes]:
        rest = reader.close()
        if rest:
            yield chunks.delta({"content": rest})
        if reader.error is not None:
            if reader.typed:
                yield from chunks.failed(reader.error)
                return
            yield chunks.delta({"content": f"\n[decode error: {reader.error['error']}]"})
            reader.finish_reason = "stop"
        yield chunks.finish(reader.finish_reason, reader.stop_reason)
        if self._context.force_include_usage or (body.get("stream_options") or {}).get("include_usage"):
            yield chunks.usage(_usage(started.prefilled, reader))
        yield SSE_DONE


class _Chunks:
    """Server-sent events of one reply."""

    def __init__(self, prefilled: Prefilled) -> None:
        self._head = {
            "id": prefilled.reply["id"],
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": prefilled.reply.get("model"),
        }

    def delta(self, delta: dict[str, Any]) -> bytes:
        return self._choice({"delta": delta, "finish_reason": None})

    def finish(self, reason: str, stop_reason: str | None = None) -> bytes:
        return self._choice({"delta": {}, "finish_reason": reason, "stop_reason": stop_reason})

    def usage(self, usage: dict[str, int]) -> bytes:
        return sse(self._head | {"choices": [], "usage": usage})

    def failed(self, problem: dict[str, Any]) -> Generator[bytes]:
        yield self.finish("stop")
        yield sse({"error": problem})
        yield SSE_DONE

    def _choice(self, inner: dict[str, Any]) -> bytes:
        return sse(self._head | {"choices": [{"index": 0} | inner]})


def _busy(queue_timeout: float) -> str:
    return f"no decode node free after waiting {queue_timeout:.1f}s" if queue_timeout > 0 else "all decode nodes busy"


def _usage(prefilled: Prefilled, reader: Reader) -> dict[str, int]:
    prompt, completion = prefilled.prompt_tokens, len(reader.tokens)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _decode_leg(body: dict[str, Any], gated: GatedRequest, prefilled: Prefilled, *, stream: bool) -> dict[str, Any]:
    leg: dict[str, Any] = {
        "rid": prefilled.rid,
        "first_token_id": prefilled.first_token,
        "max_tokens": gated.max_tokens,
        "sampling": {name: body[name] for name in _FORWARDED if name in body} | sampling(body),
        "stream": stream,
    }
    if gated.grammar is not None:
        leg["grammar_spec"] = gated.grammar
    if gated.top_logprobs is not None:
        leg["top_logprobs"] = gated.top_logprobs
    return leg


def _open_decode(request: Request, lease: Lease, leg: dict[str, Any], *, watch: bool) -> OpenAnswer:
    """Start the decode; a node that is busy is asked once more."""
    for attempt in (1, 2):
        answer = call(
            "POST", f"{lease.node.url}/pd/decode", leg, timeout=http_timeout(), gone=request.gone if watch else None
        )
        if answer is None:
            gone = {"error": "client disconnected", "error_type": "request_cancelled", "rid": leg["rid"]}
            raise Failed(json_response(gone, 499))
        if answer.status == 200:
            return answer
        refusal = answer.read()
        if refusal.status == 429 and attempt == 1:
            time.sleep(BUSY_RETRY_SECONDS)
            continue
        raise Failed(_refused(refusal.status, refusal.json(), leg["rid"]))
    raise AssertionError("unreachable")


def _refused(status: int, payload: dict[str, Any] | None, rid: str) -> Response:
    if status == 429:
        return json_response({"error": "decode node busy", "error_type": "decode_busy", "rid": rid}, 429)
    if payload is not None and payload.get("error_type") in STATUS_OF:
        return json_response(payload, status)
    return json_response({"error": "decode call failed", "status": status, "rid": rid}, 502)
