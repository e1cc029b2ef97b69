"""What a pd_router refuses before it spends a prefill on it (tilert 0.1.6.post3, pd_vllm/request_gate.py)."""

from __future__ import annotations

from typing import Any, NamedTuple

from gpufleet.twin import capabilities
from gpufleet.twin.capabilities import (
    CapabilityUnavailable,
    GrammarError,
    InvalidParameter,
    LogprobsUnsupported,
    NodeCapabilities,
)

DEFAULT_MAX_TOKENS = 256
"""For a client that names none: a trap, vLLM would give it all the room there is."""
_TOP_LOGPROBS_MAX = 5


class GatedRequest(NamedTuple):
    """What the gate read from the body."""

    chat: bool
    max_tokens: int
    stop: tuple[str, ...]
    top_logprobs: int | None
    grammar: dict[str, Any] | None


def gate(body: dict[str, Any], caps: NodeCapabilities, *, chat: bool, tokenizer: bool) -> GatedRequest:
    """Read the body.

    Raises:
        CapabilityError: 400 for what is wrong, 501 for what TileRT cannot do.
    """
    grammar = _grammar(body)
    gated = GatedRequest(
        chat=chat,
        max_tokens=_max_tokens(body),
        stop=_stop(body, tokenizer=tokenizer),
        top_logprobs=_top_logprobs(body, chat=chat, tokenizer=tokenizer),
        grammar=grammar,
    )
    template = body.get("chat_template_kwargs")
    if chat and template is not None and not isinstance(template, dict):
        raise InvalidParameter(f"chat_template_kwargs must be an object, got {type(template).__name__}")
    capabilities.validate(body, caps)
    return gated


def _max_tokens(body: dict[str, Any]) -> int:
    for name in ("max_completion_tokens", "max_tokens"):
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidParameter(f"{name} must be an integer, got {value!r}")
        if value < 1:
            raise InvalidParameter(f"{name} must be at least 1, got {value}")
        return value
    return DEFAULT_MAX_TOKENS


def _stop(body: dict[str, Any], *, tokenizer: bool) -> tuple[str, ...]:
    stop = body.get("stop") or []
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(text, str) for text in stop):
        raise InvalidParameter(f"stop must be a string or list of strings, got {type(stop).__name__}")
    if "" in stop:
        raise InvalidParameter("stop cannot contain an empty string")
    if stop and not tokenizer:
        raise CapabilityUnavailable("stop strings need a tokenizer to match against the reply text")
    return tuple(stop)


def _top_logprobs(body: dict[str, Any], *, chat: bool, tokenizer: bool) -> int | None:
    enabled, top = body.get("logprobs"), body.get("top_logprobs")
    if not chat:
        if enabled is not None:
            raise LogprobsUnsupported("logprobs is supported on /v1/chat/completions")
        return None
    if enabled is not None and not isinstance(enabled, bool):
        raise LogprobsUnsupported(f"logprobs must be a boolean, got {type(enabled).__name__}")
    if top is not None and (isinstance(top, bool) or not isinstance(top, int) or not 0 <= top <= _TOP_LOGPROBS_MAX):
        raise LogprobsUnsupported(f"top_logprobs must be in [0, {_TOP_LOGPROBS_MAX}], got {top}")
    if top and not enabled:
        raise LogprobsUnsupported("when using top_logprobs, logprobs must be set to true")
    if not enabled:
        return None
    if not tokenizer:
        raise CapabilityUnavailable("logprobs need a tokenizer to name each token, and this router has none")
    return top or 0


def _grammar(body: dict[str, Any]) -> dict[str, Any] | None:
    wanted = body.get("response_format") or {}
    if not isinstance(wanted, dict):
        raise GrammarError("response_format must be an object")
    if wanted.get("type") == "json_object":
        return {"type": "json_object", "value": None}
    if wanted.get("type") == "json_schema":
        schema = (wanted.get("json_schema") or {}).get("schema")
        if schema is None:
            raise GrammarError("response_format json_schema requires json_schema.schema")
        return {"type": "json_schema", "value": schema}
    for kind in ("regex", "ebnf"):
        if body.get(kind) is not None:
            return {"type": kind, "value": body[kind]}
    return None
