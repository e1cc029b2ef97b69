"""The decode leg of a pd_router: NDJSON from the decode node becomes text, stop strings and a verdict."""

from __future__ import annotations

import json
from typing import Any

from gpufleet.twin import answers

STATUS_OF = {
    "grammar_unsupported": 501, "invalid_grammar": 400, "grammar_violation": 400, "grammar_backend_unavailable": 500,
    "logprobs_unavailable": 501, "capability_unavailable": 501, "invalid_parameter": 400, "request_cancelled": 499,
}  # fmt: skip
"""Typed errors of a decode node that go to the client as they are; any other becomes 502."""


class Reader:
    """Reads the lines of one decode; ``text`` grows, ``error`` says how it failed."""

    def __init__(self, rid: str, stop: tuple[str, ...]) -> None:
        self.rid = rid
        self.tokens: list[int] = []
        self.finish_reason = "stop"
        self.stop_reason: str | None = None
        self.timing: dict[str, Any] = {}
        self.terminated = False
        """The node itself said that it has ended."""
        self.error: dict[str, Any] | None = None
        self._stop = stop
        self._hold = max((len(text) for text in stop), default=1) - 1
        self._text = ""
        self._taken = 0

    @property
    def finished(self) -> bool:
        """Whether more lines would change nothing."""
        return self.terminated or self.stop_reason is not None or self.error is not None

    @property
    def error_status(self) -> int:
        """HTTP status for ``error``."""
        return STATUS_OF.get(str((self.error or {}).get("error_type")), 502)

    @property
    def typed(self) -> bool:
        """Whether the client can tell from the error type what happened."""
        return str((self.error or {}).get("error_type")) in (*STATUS_OF, "decode_truncated")

    def feed(self, line: bytes) -> str:
        """Take one line; returns the text that may be shown now."""
        if not line.strip():
            return ""
        message = json.loads(line)
        if "t" in message:
            return self._push(message["t"])
        if "done" in message:
            self._done(message)
        elif "error" in message:
            self.terminated = True
            self.error = message
        return ""

    def feed_whole(self, reply: dict[str, Any]) -> None:
        """Take a reply that was not streamed; a cut one counts as a stream without its end."""
        if "token_ids" not in reply:
            return
        self.timing = reply.get("timing_ms") or {}
        self._finish(self.timing.get("finish_reason", "stop"))
        self.terminated = True
        self._push(reply["token_ids"])

    def close(self) -> str:
        """No more lines: the text that was held back, and the verdict of a stream cut short."""
        if not self.finished:
            self.error = {
                "error": "decode stream ended without a terminal message",
                "error_type": "decode_truncated",
                "rid": self.rid,
            }
        shown, self._taken = self._text[self._taken :], len(self._text)
        return shown

    @property
    def text(self) -> str:
        """Everything so far."""
        return self._text

    def _push(self, tokens: list[int]) -> str:
        for token in tokens:
            if self.stop_reason is not None:
                break
            self.tokens.append(token)
            self._text += answers.decode([token])
            self._look_for_stop()
        end = len(self._text) if self.stop_reason is not None else max(self._taken, len(self._text) - self._hold)
        shown, self._taken = self._text[self._taken : end], end
        return shown

    def _look_for_stop(self) -> None:
        found = [(at, text) for text in self._stop if (at := self._text.find(text)) >= 0]
        if found:
            at, self.stop_reason = min(found)
            self._text = self._text[:at]
            self.finish_reason = "stop"

    def _done(self, message: dict[str, Any]) -> None:
        self.terminated = True
        self.timing = message.get("timing_ms") or {}
        self._finish(message.get("finish_reason", "stop"))
        declared = message.get("n")
        if declared is not None and declared != len(self.tokens):
            self.error = {
                "error": f"decode node declared {declared} tokens and sent {len(self.tokens)}",
                "error_type": "decode_truncated",
                "rid": self.rid,
            }

    def _finish(self, reason: str) -> None:
        self.finish_reason = "stop" if reason == "cancelled" else reason
