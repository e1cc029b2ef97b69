"""The prefill leg of a pd_router: one token from vLLM, and the KV on its way to the decode node."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, NamedTuple

from gpufleet.twin import answers
from gpufleet.twin.httpd import Response
from gpufleet.twin.nodefacts import log
from gpufleet.twin.pd_pool import DecodeNode
from gpufleet.twin.upstream import Answer, UpstreamError, fetch
from gpufleet.twin.wire import derive_rid

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
_DROPPED = ("stream_options", "max_completion_tokens", "stop", "include_stop_str_in_output")
_SELF_CHECK_POLL = 5.0
_NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0}
_COPIED = ("model", *_NEUTRAL, "min_p", "presence_penalty", "frequency_penalty", "seed", "ignore_eos",
           "kv_transfer_params")  # fmt: skip


class PrefillFailed(Exception):
    """vLLM gave no first token; the reply says why."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


class Prefilled(NamedTuple):
    """What the decode leg needs."""

    reply: dict[str, Any]
    rid: str
    first_token: int

    @property
    def prompt_tokens(self) -> int:
        """As vLLM counted them."""
        return int((self.reply.get("usage") or {}).get("prompt_tokens") or 0)


def http_timeout() -> float:
    """TILERT_PD_HTTP_TIMEOUT_S, 3600 s unless set."""
    return float((os.environ.get("TILERT_PD_HTTP_TIMEOUT_S") or "3600").strip() or 3600)


def sampling(body: dict[str, Any]) -> dict[str, Any]:
    """The sampling values that go to both legs, so that they cannot disagree."""
    values = {name: default if body.get(name) is None else body[name] for name, default in _NEUTRAL.items()}
    return values | {"min_p": 0.0}


class Prefill:
    """Calls one vLLM server."""

    def __init__(self, vllm_url: str, *, tokenizer: bool) -> None:
        self._url = vllm_url.rstrip("/")
        self._tokenizes = tokenizer and (os.environ.get("TILERT_ROUTER_TOKENIZE") or "1").strip() == "1"
        self._ready = False
        self._off = False
        self._requests = 0
        if self._tokenizes:
            threading.Thread(target=self._self_check, name="self-check", daemon=True).start()

    def status(self) -> dict[str, Any] | None:
        """For /pool_status: whether the router tokenises by itself; None when it was told not to."""
        if not self._tokenizes:
            return None
        return {"on": self._ready and not self._off, "requests": self._requests, "fallback": 0}

    def run(self, path: str, body: dict[str, Any], node: DecodeNode, top_logprobs: int | None) -> Prefilled:
        """Prefill ``body`` towards ``node``.

        Raises:
            PrefillFailed: refused by vLLM (passed on), or 502.
            UpstreamError: vLLM does not answer.
        """
        chat = path == CHAT
        leg = _leg(body, node, top_logprobs, chat=chat)
        if chat and self._ready and not self._off and top_logprobs is None:
            self._requests += 1
            reply = _checked(self._by_ids(leg), f"{self._url}{COMPLETIONS}")
            first = _first_token(reply, chat=False)
            reply["id"] = f"chat{reply['id']}"
        else:
            reply = _checked(fetch("POST", f"{self._url}{path}", leg, timeout=http_timeout()), f"{self._url}{path}")
            first = _first_token(reply, chat=chat)
        return Prefilled(reply, derive_rid(str(reply["id"])), first)

    def _by_ids(self, leg: dict[str, Any]) -> Answer:
        """The chat prompt, tokenised here, as a plain completion."""
        ids = answers.encode(answers.render(leg.get("messages") or []))
        plain = {name: leg[name] for name in _COPIED if name in leg}
        plain |= {"prompt": ids, "max_tokens": 1, "stream": False, "logprobs": 1}
        return fetch("POST", f"{self._url}{COMPLETIONS}", plain, timeout=http_timeout())

    def _self_check(self) -> None:
        """Compare own tokens with vLLM's once it is up; stay off when they differ."""
        wait = float(os.environ.get("TILERT_ROUTER_TOKENIZE_SELFCHECK_WAIT_S") or 7200)
        deadline = time.monotonic() + wait
        messages = [{"role": "user", "content": "self check"}]
        while time.monotonic() < deadline:
            try:
                asked = {"messages": messages, "add_generation_prompt": True}
                answer = fetch("POST", f"{self._url}/tokenize", asked, timeout=30)
            except UpstreamError:
                time.sleep(_SELF_CHECK_POLL)
                continue
            self._ready = (answer.json() or {}).get("tokens") == answers.encode(answers.render(messages))
            self._off = not self._ready
            log(f"router-side tokenization {'ON' if self._ready else 'stays OFF: self-check disagrees with vLLM'}")
            return
        self._off = True
        log(f"router-side tokenization stays OFF: vLLM not healthy within {wait:.0f} s")


def _leg(body: dict[str, Any], node: DecodeNode, top_logprobs: int | None, *, chat: bool) -> dict[str, Any]:
    leg = {name: value for name, value in body.items() if name not in _DROPPED}
    leg |= {"max_tokens": 1, "stream": False} | sampling(body)
    leg |= {"logprobs": True, "top_logprobs": max(1, top_logprobs or 0)} if chat else {"logprobs": 1}
    leg["kv_transfer_params"] = {"tilert_host": node.host, "tilert_ctrl_port": node.ctrl_port}
    return leg


def _checked(answer: Answer, url: str) -> dict[str, Any]:
    if 400 <= answer.status < 500:
        raise PrefillFailed(Response(answer.status, answer.body, answer.content_type))
    if answer.status >= 500:
        raise UpstreamError(f"{answer.status} Server Error: Internal Server Error for url: {url}")
    return answer.json() or {}


def _first_token(reply: dict[str, Any], *, chat: bool) -> int:
    logprobs = reply["choices"][0].get("logprobs") or {}
    entries = [entry.get("token") for entry in logprobs.get("content") or []] if chat else logprobs.get("tokens")
    token = entries[0] if entries else None
    if isinstance(token, str) and token.startswith("token_id:"):
        return int(token.removeprefix("token_id:"))
    raise UpstreamError(
        f"cannot extract first token id from logprobs ({token!r}); launch vLLM with --return-tokens-as-token-ids and "
        "request logprobs"
    )
