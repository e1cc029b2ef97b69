"""A client of the endpoint, for ``ask`` and for the probe before ``up`` says ready.

Retries nothing: a caller who is told of a failure can decide, and a request may have cost GPU time. Time-outs: 10 s to
connect; ``Endpoint.timeout_s`` between two pieces of an answer, since a request may wait long in the queue.
"""

from __future__ import annotations

import json
import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpufleet.domain.text import visible
from gpufleet.errors import EndpointFailed
from gpufleet.routing.errors import CutAnswer, Overloaded, Unauthorized

if TYPE_CHECKING:
    import httpx

_SHOWN = 300
"""Characters of a server's own error text that a message repeats."""
_DECODE_ERROR = re.compile(r"\n\[decode error: [^\n]*\]\Z")
"""How pd_router ends a stream whose decode node failed in a way it does not know: as text, finish reason ``stop``."""


@dataclass(frozen=True)
class Endpoint:
    """Where to ask, as whom."""

    url: str
    """``https://host:port``, without a path."""
    key: str = field(repr=False)
    model: str
    """The served name."""
    certificate: str | None = None
    """PEM of the one certificate to accept, whatever its name; None trusts the system's authorities."""
    timeout_s: float = 3600.0


@dataclass(frozen=True)
class Answer:
    """A complete answer and how it came."""

    text: str
    reasoning: str
    served_by: str
    """``cell-decode-0`` or ``native``."""
    queue_ms: int | None
    ttft_s: float
    """From sending the request to the first piece of text or reasoning."""
    total_s: float
    tokens: int
    tokens_per_s: float | None
    """After the first token; None when there was only one piece."""
    finish_reason: str


def ask(
    endpoint: Endpoint,
    text: str,
    *,
    max_tokens: int = 512,
    on_text: Callable[[str], None] = lambda _: None,
    on_reasoning: Callable[[str], None] = lambda _: None,
) -> Answer:
    """Stream one chat answer; ``on_text`` gets its pieces as they come.

    Raises:
        Unauthorized: the key is unknown.
        Overloaded: no server is up, or the wait in the queue was too long.
        CutAnswer: the stream ended without ``[DONE]`` or a finish reason.
        EndpointFailed: anything else, an error inside the stream included.
    """
    body = {**_chat(endpoint, text, max_tokens), "stream": True, "stream_options": {"include_usage": True}}
    started = time.monotonic()
    with (
        _client(endpoint) as client,
        _errors(endpoint),
        client.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        if response.status_code != 200:
            response.read()
            raise _refusal(endpoint, response)
        stream = _Stream(started, on_text, on_reasoning)
        for event in _events(response):
            stream.take(event)
        return stream.answer(response)


def chat_once(endpoint: Endpoint, text: str, *, max_tokens: int = 8) -> Answer:
    """One chat answer in one piece; its ``ttft_s`` is the whole time.

    Raises:
        As `ask`.
    """
    started = time.monotonic()
    with _client(endpoint) as client, _errors(endpoint):
        response = client.post("/v1/chat/completions", json=_chat(endpoint, text, max_tokens))
    if response.status_code != 200:
        raise _refusal(endpoint, response)
    took = time.monotonic() - started
    try:
        data = response.json()
        choice = data["choices"][0]
        message = choice["message"]
        finish_reason = choice["finish_reason"]
        tokens = int((data.get("usage") or {}).get("completion_tokens") or 0)
    except (ValueError, LookupError, TypeError) as error:
        raise EndpointFailed(f"the answer is no chat completion: {response.text[:_SHOWN]!r}") from error
    if not finish_reason:
        raise CutAnswer("the answer has no finish reason", where=_served_by(response))
    return Answer(
        text=message.get("content") or "",
        reasoning=_reasoning(message),
        served_by=_served_by(response),
        queue_ms=_queue_ms(response),
        ttft_s=took,
        total_s=took,
        tokens=tokens,
        tokens_per_s=None,
        finish_reason=finish_reason,
    )


class _Stream:
    """Collects the events of one streamed answer."""

    def __init__(self, started: float, on_text: Callable[[str], None], on_reasoning: Callable[[str], None]) -> None:
        self._started = started
        self._on_text = on_text
        self._on_reasoning = on_reasoning
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._first: float | None = None
        self._last = started
        self._usage: int | None = None
        self._finish_reason = ""
        self._done = False

    def take(self, data: str) -> None:
        """One ``data:`` line."""
        if data == "[DONE]":
            self._done = True
            return
        event = _parse(data)
        if "error" in event:
            raise EndpointFailed(f"the stream broke off with an error: {_text_of(event['error'])}")
        if usage := event.get("usage"):
            self._usage = usage.get("completion_tokens")
        for choice in event.get("choices") or []:
            self._take_choice(choice)

    def _take_choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta") or {}
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        for piece, kept, tell in (
            (_reasoning(delta), self._reasoning, self._on_reasoning),
            (delta.get("content") or "", self._text, self._on_text),
        ):
            if piece:
                self._last = time.monotonic()
                self._first = self._first or self._last
                kept.append(piece)
                tell(piece)

    def answer(self, response: httpx.Response) -> Answer:
        """The whole, or `CutAnswer`."""
        if not self._done or not self._finish_reason:
            missing = "no [DONE]" if not self._done else "no finish reason"
            raise CutAnswer(f"the answer was cut: the stream ended with {missing}", where=_served_by(response))
        text = "".join(self._text)
        if broken := _DECODE_ERROR.search(text):
            raise CutAnswer(
                f"the decode node failed: {visible(broken[0].strip()[:_SHOWN])}", where=_served_by(response)
            )
        pieces = len(self._text) + len(self._reasoning)
        tokens = self._usage if self._usage is not None else pieces
        streaming = self._last - (self._first or self._last)
        return Answer(
            text=text,
            reasoning="".join(self._reasoning),
            served_by=_served_by(response),
            queue_ms=_queue_ms(response),
            ttft_s=(self._first or self._last) - self._started,
            total_s=self._last - self._started,
            tokens=tokens,
            tokens_per_s=(tokens - 1) / streaming if streaming > 0 and tokens > 1 else None,
            finish_reason=self._finish_reason,
        )


def _chat(endpoint: Endpoint, text: str, max_tokens: int) -> dict[str, Any]:
    return {
        "model": endpoint.model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
    }


@contextmanager
def _client(endpoint: Endpoint) -> Iterator[httpx.Client]:
    import httpx

    with httpx.Client(
        base_url=endpoint.url,
        headers={"authorization": f"Bearer {endpoint.key}"},
        timeout=httpx.Timeout(endpoint.timeout_s, connect=10.0),
        verify=pinned(endpoint.certificate) if endpoint.certificate else True,
        trust_env=False,
    ) as client:
        yield client


def pinned(certificate: str) -> ssl.SSLContext:
    """Accept exactly this certificate: it is the only root, and the handshake proves that the server holds its key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=certificate)
    return context


@contextmanager
def _errors(endpoint: Endpoint) -> Iterator[None]:
    """httpx's errors as ours; none of them repeats a header, so no key gets into a message."""
    import httpx

    try:
        yield
    except httpx.TimeoutException as error:
        raise EndpointFailed(
            f"the endpoint did not answer in time ({type(error).__name__})", where=endpoint.url
        ) from None
    except httpx.ConnectError as error:
        raise _unreachable(endpoint, str(error)) from None
    except httpx.RemoteProtocolError as error:
        raise CutAnswer(f"the answer was cut: {error}", where=endpoint.url) from None
    except httpx.TransportError as error:
        raise EndpointFailed(f"the connection to the endpoint broke: {error}", where=endpoint.url) from None


def _unreachable(endpoint: Endpoint, reason: str) -> EndpointFailed:
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return EndpointFailed(
            "the endpoint shows another certificate than the one pinned for this fleet",
            where=endpoint.url,
            hint="if you did not change it, somebody stands in between; gpufleet up pins the router's own again",
        )
    return EndpointFailed(
        f"nothing answers at the endpoint: {reason}", where=endpoint.url, hint="gpufleet status shows what runs"
    )


def _refusal(endpoint: Endpoint, response: httpx.Response) -> EndpointFailed:
    text = _error_text(response)
    if response.status_code == 401:
        return Unauthorized(
            "the endpoint does not know this key", where=endpoint.url, hint="gpufleet up installs a changed key"
        )
    if response.status_code in {429, 503}:
        return Overloaded(
            f"the endpoint is full ({response.status_code}): {text}",
            where=endpoint.url,
            hint="gpufleet status shows which cells are up and how many requests wait",
        )
    return EndpointFailed(f"the endpoint answered {response.status_code}: {text}", where=_served_by(response))


def _error_text(response: httpx.Response) -> str:
    try:
        return _text_of(response.json()["error"])
    except (ValueError, LookupError, TypeError):
        return visible(response.text[:_SHOWN]).strip()


def _text_of(error: Any) -> str:
    """``{"message": ...}`` as OpenAI and vLLM write it, or plain text as TileRT does."""
    message = error.get("message") if isinstance(error, dict) else error
    return visible(str(message)[:_SHOWN])


def _events(response: httpx.Response) -> Iterator[str]:
    for line in response.iter_lines():
        if line.startswith("data:"):
            yield line.removeprefix("data:").strip()


def _parse(data: str) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError:
        raise EndpointFailed(f"the stream holds something that is no JSON: {data[:_SHOWN]!r}") from None
    if not isinstance(event, dict):
        raise EndpointFailed(f"the stream holds something that is no event: {data[:_SHOWN]!r}")
    return event


def _reasoning(message: dict[str, Any]) -> str:
    """vLLM calls it ``reasoning``, older releases ``reasoning_content``."""
    return message.get("reasoning") or message.get("reasoning_content") or ""


def _served_by(response: httpx.Response) -> str:
    return visible(str(response.headers.get("x-gpufleet-served-by", "unknown")))


def _queue_ms(response: httpx.Response) -> int | None:
    value = response.headers.get("x-gpufleet-queue-ms", "")
    return int(value) if value.isdecimal() else None
