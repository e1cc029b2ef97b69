"""What a completion request asks of vLLM, checked as vLLM checks it."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from gpufleet.twin import answers
from gpufleet.twin.httpd import Request

COMPLETION_MAX_TOKENS = 16
"""/v1/completions without max_tokens."""


class BadRequest(Exception):
    """A request that is refused, with its HTTP status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Generation(NamedTuple):
    """One request, resolved."""

    request_id: str
    """As the client sees it: ``chatcmpl-...``."""
    internal_id: str
    """As the engine and its connectors see it: with vLLM's own suffix."""
    chat: bool
    model: str | None
    prompt: str
    prompt_tokens: int
    max_tokens: int
    stream: bool
    include_usage: bool
    logprobs: int | None
    """How many alternatives per token; None for no log probabilities."""
    ignore_eos: bool
    stop: tuple[str, ...]
    priority: int
    kv_transfer_params: dict[str, Any]


def parse_request(request: Request, max_model_len: int, *, chat: bool) -> Generation:
    """Read and check a request.

    Raises:
        BadRequest: what vLLM answers 400 to.
    """
    try:
        body = request.json()
    except ValueError as error:
        raise BadRequest(f"Invalid JSON: {error}") from None
    prompt = _chat_prompt(body) if chat else _plain_prompt(body)
    prompt_tokens = len(answers.encode(prompt))
    request_id, internal_id = _ids(request, chat=chat)
    return Generation(
        request_id=request_id,
        internal_id=internal_id,
        chat=chat,
        model=body.get("model"),
        prompt=prompt,
        prompt_tokens=prompt_tokens,
        max_tokens=_max_tokens(body, prompt_tokens, max_model_len, chat=chat),
        stream=bool(body.get("stream")),
        include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        logprobs=_logprobs(body, chat=chat),
        ignore_eos=bool(body.get("ignore_eos")),
        stop=_stop(body),
        priority=int(body.get("priority") or 0),
        kv_transfer_params=body.get("kv_transfer_params") or {},
    )


def _chat_prompt(body: dict[str, Any]) -> str:
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise BadRequest("[{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'Field required'}]")
    return answers.render(messages)


def _plain_prompt(body: dict[str, Any]) -> str:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0] if isinstance(prompt[0], str | list) else prompt
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return answers.decode(prompt)
    raise BadRequest("Either prompt or prompt_embeds must be provided and non-empty.")


def _max_tokens(body: dict[str, Any], prompt_tokens: int, max_model_len: int, *, chat: bool) -> int:
    room = max_model_len - prompt_tokens
    asked = body.get("max_completion_tokens") if chat else None
    asked = body.get("max_tokens") if asked is None else asked
    if asked is not None and (not isinstance(asked, int) or isinstance(asked, bool) or asked < 1):
        raise BadRequest(f"max_tokens must be at least 1, got {asked}.")
    if room < 1 or (asked is not None and asked > room):
        raise BadRequest(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested "
            f"{asked or 1} output tokens and your prompt contains at least {prompt_tokens} input tokens, for a total "
            f"of at least {prompt_tokens + (asked or 1)} tokens. Please reduce the length of the input prompt or the "
            "number of requested output tokens."
        )
    if asked is None:
        return room if chat else min(COMPLETION_MAX_TOKENS, room)
    return int(asked)


def _logprobs(body: dict[str, Any], *, chat: bool) -> int | None:
    if not chat:
        value = body.get("logprobs")
        return None if value is None else int(value)
    if not body.get("logprobs"):
        if body.get("top_logprobs"):
            raise BadRequest("when using `top_logprobs`, `logprobs` must be set to true.")
        return None
    return int(body.get("top_logprobs") or 0)


def _stop(body: dict[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop") or ()
    return (stop,) if isinstance(stop, str) else tuple(str(text) for text in stop)


def _ids(request: Request, *, chat: bool) -> tuple[str, str]:
    given = request.headers.get("x-request-id") or os.urandom(16).hex()
    suffix = os.urandom(4).hex()
    if chat:
        return f"chatcmpl-{given}", f"chatcmpl-{given}-{suffix}"
    return f"cmpl-{given}", f"cmpl-{given}-0-{suffix}"
