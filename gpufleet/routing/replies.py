"""HAProxy's own answers, as OpenAI-style JSON errors. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator

_REPLIES = {
    "invalid_api_key": ("authentication_error", "no channel has this key: send it as 'Authorization: Bearer KEY'"),
    "not_found": ("invalid_request_error", "there is no such path: this endpoint serves /v1/..."),
    "nothing_serves": ("server_error", "no server is up"),
    "bad_request": ("invalid_request_error", "the request could not be read"),
    "request_timeout": ("invalid_request_error", "the request did not arrive in time"),
    "server_closed": ("server_error", "the server broke the connection or sent no valid answer"),
    "server_timeout": ("server_error", "the server did not answer in time"),
    "internal": ("server_error", "the front router failed"),
}
_BY_STATUS = {
    400: "bad_request",
    408: "request_timeout",
    500: "internal",
    502: "server_closed",
    504: "server_timeout",
}


def json_reply(code: str) -> str:
    """The tail of a ``return`` or ``http-error`` line."""
    kind, message = _REPLIES[code]
    return _content(code, kind, message)


def defaults_replies(queue_timeout_s: int) -> Iterator[str]:
    """``http-error`` lines for what HAProxy answers on its own."""
    for status, code in _BY_STATUS.items():
        yield f"http-error status {status} {json_reply(code)}"
    full = f"no server could take the request: none is up, or it waited {queue_timeout_s} s in the queue"
    yield f"http-error status 503 {_content('overloaded', 'server_error', full)} hdr Retry-After 5"


def _content(code: str, kind: str, message: str) -> str:
    """Quoted for haproxy.cfg: a single quote ends the string there, so it is written from outside."""
    body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})
    quoted = body.replace("'", "'\"'\"'")
    return f"content-type application/json string '{quoted}'"
