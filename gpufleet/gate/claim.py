"""Which requests are bound for a TileRT node, and how they look on their way to vLLM."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from gpufleet.gate.config import Address
from gpufleet.gate.replies import Refusal

DEFAULT_PORT = 5556
PATHS = ("/v1/chat/completions", "/v1/completions")
_MANY = ("n", "best_of")
_MARKS = (b"tilert_host", b"\\u", b"\0")
"""A claim has one of these: the key as it is, escaped, or in UTF-16 or UTF-32, which JSON readers detect too."""


@dataclass(frozen=True)
class Claim:
    """A request whose KV goes to a decode node."""

    node: Address
    body: dict[str, Any]

    def rewritten(self, relay: Address, priority: int | None) -> bytes:
        """The body for vLLM: the hand-over goes to ``relay``, and the request has a place in vLLM's queue."""
        params = self.body["kv_transfer_params"] | {"tilert_host": relay.host, "tilert_ctrl_port": relay.port}
        body = self.body | {"kv_transfer_params": params}
        if priority is not None:
            body["priority"] = priority
        return json.dumps(body).encode()


def read(path: str, body: bytes) -> Claim | None:
    """The claim in a request; None when it has none.

    Every body is looked at, whatever its path: one that reaches vLLM unseen could overlap with a hand-over.

    Raises:
        Refusal: a claim that the gate cannot keep apart from others.
    """
    if not any(mark in body for mark in _MARKS):
        return None
    try:
        value = json.loads(body)
    except ValueError:
        return None
    params = value.get("kv_transfer_params") if isinstance(value, dict) else None
    if not isinstance(params, dict) or not params.get("tilert_host"):
        return None
    if path not in PATHS:
        raise Refusal(400, "path", f"a TileRT hand-over is asked for at {' or '.join(PATHS)}, not at {path}")
    if _runs_as_several(value):
        raise Refusal(
            400, "several", "a TileRT hand-over is one prompt with one answer: n, best_of or prompts exceed 1"
        )
    return Claim(_node(params), value)


def _node(params: dict[str, Any]) -> Address:
    port = params.get("tilert_ctrl_port", DEFAULT_PORT)
    try:
        return Address(str(params["tilert_host"]), int(port))
    except (TypeError, ValueError):
        raise Refusal(400, "port", f"tilert_ctrl_port is no port: {port!r}") from None


def _runs_as_several(body: dict[str, Any]) -> bool:
    """vLLM makes several requests of one with these, and each would be handed over."""
    if any(body.get(name) not in (None, 1) for name in _MANY) or body.get("use_beam_search"):
        return True
    prompt = body.get("prompt")
    return isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)
