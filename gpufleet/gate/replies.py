"""What the gate answers by itself, worded as OpenAI's API words errors."""

from __future__ import annotations

import json
from dataclasses import dataclass

_PHRASE_LIMIT = 200


@dataclass(frozen=True)
class Reply:
    """A whole HTTP answer, ready to be sent."""

    status: int
    raw: bytes
    keep_alive: bool = True


class Refusal(Exception):
    """The gate does not carry a request out, or could not.

    ``reason`` is a short word for metrics; ``retry_after_s`` seconds after which it may work again.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s

    def reply(self) -> Reply:
        """As an HTTP answer.

        The status line says why too: pd_router drops the body of a 5xx and passes on the line alone.
        """
        error = {"message": self.message, "type": "kv_gate_error", "param": None, "code": self.reason}
        phrase = "".join(c if c.isascii() and c.isprintable() else "?" for c in self.message)[:_PHRASE_LIMIT]
        extra = "" if self.retry_after_s is None else f"retry-after: {max(1, round(self.retry_after_s))}\r\n"
        return plain(self.status, json.dumps({"error": error}).encode(), "application/json", phrase, extra)


def plain(status: int, body: bytes, content_type: str, phrase: str = "OK", extra: str = "") -> Reply:
    """An answer of the gate's own; ``extra`` holds further header lines."""
    head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n{extra}\r\n"
    return Reply(status, head.encode("latin-1") + body)
