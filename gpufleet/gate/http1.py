"""As much of HTTP/1.1 as a proxy must understand: heads, and where a body ends. Strict where peers could disagree."""

from __future__ import annotations

from asyncio import StreamReader
from dataclasses import dataclass
from typing import Protocol

HEAD_LIMIT = 64 * 1024
BODY_LIMIT = 512 * 1024 * 1024
_END = b"\r\n\r\n"


class BadHttp(ValueError):
    """A peer does not speak HTTP/1.1 as the gate accepts it."""


@dataclass(frozen=True)
class Head:
    """A request's or an answer's head."""

    first: str
    fields: tuple[tuple[str, str], ...]
    """Names as sent."""
    raw: bytes

    def all(self, name: str) -> list[str]:
        """Every value of a field, by its lower-case name."""
        return [value for own, value in self.fields if own.lower() == name]

    def tokens(self, name: str) -> set[str]:
        """The comma-separated words of a field, in lower case."""
        return {word.strip().lower() for value in self.all(name) for word in value.split(",") if word.strip()}

    @property
    def method(self) -> str:
        """Of a request."""
        return self.first.split(" ", 1)[0]

    @property
    def target(self) -> str:
        """Of a request."""
        return self.first.split(" ")[1]

    @property
    def status(self) -> int:
        """Of an answer."""
        return int(self.first.split(" ")[1])

    @property
    def keep_alive(self) -> bool:
        """Whether the sender wants to go on using the connection."""
        old = "HTTP/1.0" in self.first
        return "keep-alive" in self.tokens("connection") if old else "close" not in self.tokens("connection")


class Framing(Protocol):
    """Follows the bytes of a body to its end."""

    over: bool

    def feed(self, data: bytes) -> int:
        """How many of ``data`` belong to the body."""
        ...


class Sized:
    """A body of known length."""

    def __init__(self, size: int) -> None:
        self._left = size
        self.over = size == 0

    def feed(self, data: bytes) -> int:
        """See Framing."""
        taken = min(self._left, len(data))
        self._left -= taken
        self.over = self._left == 0
        return taken


class Chunked:
    """A body in chunks."""

    def __init__(self) -> None:
        self.over = False
        self._left = 0
        self._line = b""
        self._trailer = False

    def feed(self, data: bytes) -> int:
        """See Framing; BadHttp when it is not chunked."""
        at = 0
        while at < len(data) and not self.over:
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
                at += step
                continue
            end = data.find(b"\n", at)
            if end < 0:
                self._line += data[at:]
                if len(self._line) > HEAD_LIMIT:
                    raise BadHttp("chunk line too long")
                return len(data)
            self._ended(self._line + data[at:end])
            self._line = b""
            at = end + 1
        return at

    def _ended(self, line: bytes) -> None:
        line = line.rstrip(b"\r")
        if self._trailer:
            self.over = not line
            return
        size = chunk_size(line)
        self._trailer = size == 0
        self._left = size + 2 if size else 0


class UntilClose:
    """A body that ends with the connection."""

    over = False

    def feed(self, data: bytes) -> int:
        """See Framing."""
        return len(data)


def chunk_size(line: bytes) -> int:
    """The size in a chunk's first line."""
    digits = line.split(b";", 1)[0].strip()
    if not digits or any(c not in b"0123456789abcdefABCDEF" for c in digits):
        raise BadHttp(f"bad chunk size {digits[:20]!r}")
    return int(digits, 16)


async def read_head(reader: StreamReader) -> Head:
    """The next head.

    Raises:
        BadHttp: it is none, or too long.
        asyncio.IncompleteReadError: the peer closed; ``partial`` is empty when it did so between messages.
        asyncio.LimitOverrunError: it is longer than the reader's limit.
    """
    return parse_head(await reader.readuntil(_END))


def parse_head(raw: bytes) -> Head:
    """Raises BadHttp."""
    first, *lines = raw[: -len(_END)].decode("latin-1").split("\r\n")
    if len(first.split(" ")) < 2 or "HTTP/1." not in first or "\0" in first or "\n" in first:
        raise BadHttp(f"not an HTTP/1.1 head: {first[:80]!r}")
    return Head(first, tuple(_field(line) for line in lines), raw)


def _field(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name or name != name.strip() or any(c in line for c in "\r\n\0"):
        raise BadHttp(f"bad header line {line[:80]!r}")
    return name, value.strip()


def request_framing(head: Head) -> Framing:
    """How a request's body ends; BadHttp where two readers could differ about it."""
    return _framing(head) or Sized(0)


def response_framing(head: Head, method: str) -> Framing:
    """How an answer's body ends."""
    if method == "HEAD" or head.status in (204, 304) or 100 <= head.status < 200:
        return Sized(0)
    return _framing(head) or UntilClose()


def _framing(head: Head) -> Framing | None:
    codings, lengths = head.tokens("transfer-encoding"), set(head.all("content-length"))
    if codings:
        if codings != {"chunked"} or lengths:
            raise BadHttp("transfer-encoding other than plain chunked")
        return Chunked()
    if not lengths:
        return None
    size = lengths.pop()
    if lengths or not (size.isascii() and size.isdigit()) or int(size) > BODY_LIMIT:
        raise BadHttp("bad content-length")
    return Sized(int(size))


async def read_body(reader: StreamReader, framing: Framing) -> bytes:
    """A request's body, without chunk marks.

    Raises:
        BadHttp: malformed or too large.
        asyncio.IncompleteReadError: the peer closed in the middle.
    """
    if isinstance(framing, Sized):
        return await reader.readexactly(framing._left)
    body = bytearray()
    while size := chunk_size((await reader.readuntil(b"\n")).rstrip(b"\r\n")):
        if len(body) + size > BODY_LIMIT:
            raise BadHttp("body too large")
        body += (await reader.readexactly(size + 2))[:-2]
    while (await reader.readuntil(b"\n")).rstrip(b"\r\n"):
        pass
    return bytes(body)


def with_body(head: Head, body: bytes) -> bytes:
    """The request to send on: the same head for a body that has been read whole and may have changed."""
    dropped = {"content-length", "transfer-encoding", "expect", "trailer"}
    lines = [f"{name}: {value}" for name, value in head.fields if name.lower() not in dropped]
    if body or head.method in ("POST", "PUT", "PATCH"):
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([head.first, *lines, "", ""]).encode("latin-1") + body
