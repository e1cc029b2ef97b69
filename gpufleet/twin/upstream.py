"""HTTP calls of the routers to the servers behind them."""

from __future__ import annotations

import http.client
import json
import select
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_CONNECT_SECONDS = 10.0
_WATCH_SECONDS = 0.2
"""How often a router that waits for a reply looks whether its own client is still there."""


class UpstreamError(Exception):
    """No reply: refused, reset or timed out."""


class Answer(NamedTuple):
    """A whole reply."""

    status: int
    body: bytes
    content_type: str

    def json(self) -> dict[str, Any] | None:
        """The body as a JSON object, or None."""
        try:
            value = json.loads(self.body)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None


class OpenAnswer:
    """A reply that is still being read."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._connection = connection
        self._response = response
        self.status = response.status
        self.content_type = response.getheader("content-type") or "application/json"

    def chunks(self) -> Iterator[bytes]:
        """What arrives, as it arrives.

        Raises:
            UpstreamError: the server went away in the middle.
        """
        try:
            while chunk := self._response.read1(65536):
                yield chunk
        except (OSError, http.client.HTTPException) as error:
            raise UpstreamError(str(error) or type(error).__name__) from error

    def lines(self) -> Iterator[bytes]:
        """Whole lines, as they arrive; a last one without its end is dropped."""
        rest = b""
        for chunk in self.chunks():
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines

    def read(self) -> Answer:
        """The rest of it, as a whole."""
        with self:
            return Answer(self.status, b"".join(self.chunks()), self.content_type)

    def __enter__(self) -> OpenAnswer:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.close()
        self._connection.close()


def call(
    method: str,
    url: str,
    body: object = None,
    *,
    timeout: float,
    headers: dict[str, str] | None = None,
    gone: Callable[[], bool] | None = None,
) -> OpenAnswer | None:
    """Send a request and wait for the head of its reply; None when ``gone`` says that nobody wants it any more.

    Raises:
        UpstreamError: no reply.
    """
    base, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(base, timeout=min(timeout, _CONNECT_SECONDS))
    data = None if body is None else json.dumps(body).encode()
    try:
        connection.connect()
        connection.sock.settimeout(timeout)
        connection.request(method, f"/{path}", data, {"content-type": "application/json"} | (headers or {}))
        if gone is not None and not _await_reply(connection, gone):
            connection.close()
            return None
        return OpenAnswer(connection, connection.getresponse())
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        raise UpstreamError(f"{method} {url} failed: {error}") from error


def _await_reply(connection: http.client.HTTPConnection, gone: Callable[[], bool]) -> bool:
    while not select.select([connection.sock], [], [], _WATCH_SECONDS)[0]:
        if gone():
            return False
    return True


def fetch(method: str, url: str, body: object = None, *, timeout: float) -> Answer:
    """Like ``call``, read to the end.

    Raises:
        UpstreamError: no reply.
    """
    answer = call(method, url, body, timeout=timeout)
    if answer is None:
        raise UpstreamError(f"{method} {url} was abandoned")
    return answer.read()
