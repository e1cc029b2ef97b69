"""The engines of the decode stand-in: ``tilert`` answers from the KV that arrived, ``stub`` says three fixed tokens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from gpufleet.twin import answers
from gpufleet.twin.nodefacts import NodeFacts

OnToken = Callable[[int], None]
STUB_TOKENS = (11, 22, 33)
_MTP_ACCEPTED = 2.8
"""Tokens per verification step that the real one reports for GLM-5.1."""


class Job:
    """What one request asks of the engine."""

    def __init__(self, body: dict[str, Any], kv_text: str, seq_len: int) -> None:
        self.first_token = int(body["first_token_id"])
        self.max_tokens = int(body.get("max_tokens", 256))
        self.sampling: dict[str, Any] = body.get("sampling") or {}
        self.kv_text = kv_text
        self.seq_len = seq_len
        self.cancel = threading.Event()


class Engine(Protocol):
    """Decodes one request at a time."""

    name: str
    supports_penalties: bool
    supports_logprobs: bool
    supports_grammar: bool

    def decode(self, job: Job, on_token: OnToken) -> dict[str, Any]:
        """Emit tokens until the answer, the budget or a cancel ends it; returns the statistics of the run."""


def make_engine(kind: str, facts: NodeFacts, max_seq_len: int, *, with_mtp: bool) -> Engine:
    """The engine that ``--engine`` names."""
    if kind == "stub":
        return StubEngine()
    return TilertEngine(facts.pace["decode_tps"], max_seq_len, with_mtp=with_mtp)


class StubEngine:
    """``--engine stub``: healthy, quick and wrong."""

    name = "StubEngine"
    supports_penalties = True
    supports_logprobs = True
    supports_grammar = True

    def decode(self, job: Job, on_token: OnToken) -> dict[str, Any]:
        """The first token and three fixed ones."""
        for token in (job.first_token, *STUB_TOKENS)[: job.max_tokens]:
            on_token(token)
        return {"finish_reason": "stop"}


class TilertEngine:
    """``--engine tilert``."""

    name = "MlaNsaEngineAdapter"
    supports_penalties = False
    supports_logprobs = False
    supports_grammar = False

    def __init__(self, tokens_per_second: float, max_seq_len: int, *, with_mtp: bool) -> None:
        self._step = 1 / tokens_per_second
        self._max_seq_len = max_seq_len
        self._with_mtp = with_mtp

    def decode(self, job: Job, on_token: OnToken) -> dict[str, Any]:
        """The answer to what lies in the KV buffer, at the node's pace."""
        budget = min(job.max_tokens, self._max_seq_len - job.seq_len - 1)
        on_token(job.first_token)
        if budget <= 0:
            return {"finish_reason": "length"}
        ignore_eos = bool(job.sampling.get("ignore_eos"))
        answer = answers.answer_tokens(answers.question_of(job.kv_text), budget, ignore_eos=ignore_eos)
        finish = self._emit(answer, job, on_token)
        stats: dict[str, Any] = {"finish_reason": finish}
        if self._with_mtp:
            stats |= {
                "mtp_accept_mean": _MTP_ACCEPTED,
                "mtp_verify_calls": round(len(answer.tokens) / _MTP_ACCEPTED),
            }
        return stats

    def _emit(self, answer: answers.Answer, job: Job, on_token: OnToken) -> str:
        due = time.monotonic()
        for token in answer.tokens[1:]:
            due += self._step
            if job.cancel.wait(max(0.0, due - time.monotonic())):
                return "cancelled"
            on_token(token)
        return answer.finish_reason
