"""Replies of vLLM's OpenAI endpoints, whole and streamed."""

from __future__ import annotations

import time
from typing import Any

from gpufleet.twin import answers
from gpufleet.twin.vllm_request import Generation

_LOGPROB = -0.125


class Shape:
    """Builds the reply to one request."""

    def __init__(self, generation: Generation, model: str, *, token_ids: bool) -> None:
        self.generation = generation
        self._model = model
        self._token_ids = token_ids
        self._created = int(time.time())

    def whole(
        self, tokens: list[int], finish_reason: str, kv_transfer_params: dict[str, object] | None
    ) -> dict[str, Any]:
        """A reply that is not streamed."""
        text = answers.decode(tokens)
        choice: dict[str, Any] = {"index": 0, "logprobs": self._logprobs(tokens), "finish_reason": finish_reason}
        choice["stop_reason"] = None
        if self.generation.chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None, "tool_calls": []}
        else:
            choice["text"] = text
        return self._envelope("chat.completion" if self.generation.chat else "text_completion") | {
            "choices": [choice],
            "usage": self._usage(len(tokens)),
            "kv_transfer_params": kv_transfer_params,
        }

    def first(self) -> dict[str, Any]:
        """The chunk that names the role."""
        return self._event({"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None})

    def chunk(self, token: int) -> dict[str, Any]:
        """One token."""
        text = answers.decode([token])
        inner = {"delta": {"content": text}} if self.generation.chat else {"text": text}
        return self._event(inner | {"logprobs": self._logprobs([token]), "finish_reason": None})

    def last(self, finish_reason: str) -> dict[str, Any]:
        """The chunk that says why the reply ends."""
        inner: dict[str, Any] = {"delta": {}} if self.generation.chat else {"text": ""}
        return self._event(inner | {"logprobs": None, "finish_reason": finish_reason, "stop_reason": None})

    def usage_chunk(self, completion_tokens: int) -> dict[str, Any]:
        """The closing chunk with the token counts."""
        return self._envelope(self._stream_object) | {"choices": [], "usage": self._usage(completion_tokens)}

    @property
    def _stream_object(self) -> str:
        return "chat.completion.chunk" if self.generation.chat else "text_completion"

    def _event(self, inner: dict[str, Any]) -> dict[str, Any]:
        return self._envelope(self._stream_object) | {"choices": [{"index": 0} | inner]}

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {"id": self.generation.request_id, "object": kind, "created": self._created, "model": self._model}

    def _usage(self, completion_tokens: int) -> dict[str, Any]:
        prompt = self.generation.prompt_tokens
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion_tokens,
            "completion_tokens": completion_tokens,
            "prompt_tokens_details": None,
        }

    def _logprobs(self, tokens: list[int]) -> dict[str, Any] | None:
        wanted = self.generation.logprobs
        if wanted is None:
            return None
        names = [self._name(token) for token in tokens]
        if self.generation.chat:
            return {"content": [_chat_logprob(name, wanted) for name in names]}
        return {
            "tokens": names,
            "token_logprobs": [_LOGPROB] * len(names),
            "text_offset": [0] * len(names),
            "top_logprobs": [{name: _LOGPROB} for name in names],
        }

    def _name(self, token: int) -> str:
        return f"token_id:{token}" if self._token_ids else answers.decode([token])


def _chat_logprob(name: str, wanted: int) -> dict[str, Any]:
    entry = {"token": name, "logprob": _LOGPROB, "bytes": list(name.encode())}
    return entry | {"top_logprobs": [entry] if wanted else []}
