"""A small HTTP/1.1 server for the stand-ins: a thread per connection, keep-alive, chunked streaming.

Why not http.server: its imports take longer than a whole stand-in may take to start, and fifty start at once.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import threading
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from gpufleet.twin.nodefacts import listen

HEAD_LIMIT = 64 * 1024
BODY_LIMIT = 512 * 1024 * 1024
_REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
    413: "Payload Too Large", 422: "Unprocessable Entity", 429: "Too Many Requests", 499: "Client Closed Request",
    500: "Internal Server Error", 501: "Not Implemented", 502: "Bad Gateway", 503: "Service Unavailable",
    504: "Gateway Timeout",
}  # fmt: skip


class Request(NamedTuple):
    """One parsed request."""

    method: str
    path: str
    """Without the query."""
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    sock: socket.socket
    keep_alive: bool
    """Whether the client wants to send another request on this connection."""

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; ValueError when it is none."""
        value = json.loads(self.body)
        if not isinstance(value, dict):
            raise ValueError("Input should be a valid dictionary")  # noqa: TRY004 - one error for "bad body"
        return value

    def gone(self) -> bool:
        """Whether the client has hung up. Costs one system call."""
        try:
            readable, _, _ = select.select([self.sock], [], [], 0)
            return bool(readable) and not self.sock.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True


class Response(NamedTuple):
    """A whole reply."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"


class Stream(NamedTuple):
    """A reply sent piece by piece. ``chunks`` is closed when the client hangs up, so its ``finally`` runs."""

    chunks: Generator[bytes]
    content_type: str = "text/event-stream; charset=utf-8"


Reply = Response | Stream
Handler = Callable[[Request], Reply]


def json_response(value: object, status: int = 200) -> Response:
    """A JSON reply, without spaces as the real servers write it."""
    return Response(status, json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def sse(value: object) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


SSE_DONE = b"data: [DONE]\n\n"


class HttpServer:
    """Listens at once; serves when ``serve`` is called."""

    def __init__(self, host: str, port: int, handler: Handler) -> None:
        """Raises OSError when the port is taken."""
        self._handler = handler
        self._socket = listen(host, port)
        self.port: int = self._socket.getsockname()[1]

    def serve(self) -> None:
        """Accept connections until the process ends."""
        while True:
            sock, _ = self._socket.accept()
            threading.Thread(target=self._connection, args=(sock,), daemon=True).start()

    def _connection(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with sock, sock.makefile("rb") as reader:
            try:
                while self._exchange(sock, reader):
                    pass
            except (OSError, ValueError):
                return

    def _exchange(self, sock: socket.socket, reader: Any) -> bool:
        """Serve one request; whether the connection stays open."""
        request = _read_request(sock, reader)
        if request is None:
            return False
        keep = request.keep_alive
        reply = self._reply(request)
        if isinstance(reply, Stream):
            return _send_stream(sock, reply, keep=keep)
        sock.sendall(_head(reply.status, reply.content_type, f"content-length: {len(reply.body)}", keep) + reply.body)
        return keep

    def _reply(self, request: Request) -> Reply:
        """The handler's reply; a fault in it is a 500, as with the real servers, and its trace goes to the log."""
        try:
            return self._handler(request)
        except Exception:  # noqa: BLE001 - the outermost edge of a request
            sys.excepthook(*sys.exc_info())
            return Response(500, b"Internal Server Error", "text/plain; charset=utf-8")


def _read_request(sock: socket.socket, reader: Any) -> Request | None:
    line = reader.readline(HEAD_LIMIT)
    if not line.strip():
        return None
    parts = line.decode("latin-1").split()
    if len(parts) != 3:
        sock.sendall(_head(400, "text/plain", "content-length: 0", keep=False))
        return None
    headers = _read_headers(reader)
    if "100-continue" in headers.get("expect", "").lower():
        sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = _read_body(reader, headers)
    return Request(parts[0], parts[1].split("?", 1)[0], headers, body, sock, _keep_alive(parts[2], headers))


def _keep_alive(version: str, headers: dict[str, str]) -> bool:
    wish = headers.get("connection", "").lower()
    return wish == "keep-alive" if version == "HTTP/1.0" else wish != "close"


def _read_headers(reader: Any) -> dict[str, str]:
    headers: dict[str, str] = {}
    while True:
        line = reader.readline(HEAD_LIMIT)
        if line in (b"\r\n", b"\n", b""):
            return headers
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()


def _read_body(reader: Any, headers: dict[str, str]) -> bytes:
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return _read_chunked(reader)
    size = int(headers.get("content-length", "0"))
    if size > BODY_LIMIT:
        raise ValueError("body too large")
    body: bytes = reader.read(size)
    if len(body) != size:
        raise ConnectionError("connection closed mid-body")
    return body


def _read_chunked(reader: Any) -> bytes:
    body = bytearray()
    while True:
        size = int(reader.readline(HEAD_LIMIT).split(b";", 1)[0], 16)
        body += reader.read(size)
        reader.readline(HEAD_LIMIT)
        if size == 0:
            return bytes(body)


def _head(status: int, content_type: str, length: str, keep: bool) -> bytes:
    reason = _REASONS.get(status, "Status")
    connection = "keep-alive" if keep else "close"
    return (
        f"HTTP/1.1 {status} {reason}\r\ncontent-type: {content_type}\r\n{length}\r\nconnection: {connection}\r\n\r\n"
    ).encode()


def _send_stream(sock: socket.socket, reply: Stream, *, keep: bool) -> bool:
    """Send the head together with the first chunk: a generator that has begun is one whose ``finally`` will run."""
    chunks = reply.chunks
    head = _head(200, reply.content_type, "transfer-encoding: chunked", keep=keep)
    try:
        for chunk in chunks:
            sock.sendall(head + f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
            head = b""
        sock.sendall(head + b"0\r\n\r\n")
    finally:
        chunks.close()
    return keep


NOT_FOUND = json_response({"detail": "Not Found"}, 404)
METHOD_NOT_ALLOWED = json_response({"detail": "Method Not Allowed"}, 405)


def routes(table: dict[tuple[str, str], Handler]) -> Handler:
    """Dispatch by method and path; 404 and 405 as FastAPI words them."""
    known = {path for _, path in table}

    def handle(request: Request) -> Reply:
        handler = table.get((request.method, request.path))
        if handler is not None:
            return handler(request)
        return METHOD_NOT_ALLOWED if request.path in known else NOT_FOUND

    return handle
