"""The HTTP side of the vLLM stand-in: OpenAI endpoints, health, tokenizer and metrics."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import NamedTuple

from gpufleet.twin import answers
from gpufleet.twin.httpd import (
    SSE_DONE,
    Handler,
    Reply,
    Request,
    Response,
    Stream,
    json_response,
    routes,
    sse,
)
from gpufleet.twin.kv_sender import Sender
from gpufleet.twin.nixl import NixlConnector, NixlError
from gpufleet.twin.nodefacts import log
from gpufleet.twin.openai_shapes import Shape
from gpufleet.twin.vllm_engine import Engine, Prefill
from gpufleet.twin.vllm_request import BadRequest, Generation, parse_request


class ServerInfo(NamedTuple):
    """How the server was started."""

    version: str
    model: str
    served_names: tuple[str, ...]
    max_model_len: int
    token_ids: bool
    """--return-tokens-as-token-ids."""
    api_key: str | None
    block_size: int
    priorities: bool
    fail_on_load_error: bool


class VllmApp:
    """Serves one model."""

    def __init__(self, info: ServerInfo, engine: Engine, sender: Sender | None, nixl: NixlConnector | None) -> None:
        self._info = info
        self._engine = engine
        self._sender = sender
        self._nixl = nixl
        self._started = int(time.time())
        self._prompt_tokens = 0
        self._generated = 0
        self._finished = 0

    def handler(self) -> Handler:
        """The routes of the real server that the stand-in serves."""
        table: dict[tuple[str, str], Handler] = {
            ("GET", "/health"): lambda _: Response(),
            ("GET", "/ping"): lambda _: Response(),
            ("GET", "/version"): lambda _: json_response({"version": self._info.version}),
            ("GET", "/load"): lambda _: json_response({"server_load": self._engine.running}),
            ("GET", "/metrics"): self._metrics,
            ("GET", "/v1/models"): self._models,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("POST", "/v1/chat/completions"): lambda r: self._complete(r, chat=True),
            ("POST", "/v1/completions"): lambda r: self._complete(r, chat=False),
        }
        return self._authenticated(routes(table))

    def _authenticated(self, inner: Handler) -> Handler:
        key = self._info.api_key
        if not key:
            return inner

        def handle(request: Request) -> Reply:
            if request.path.startswith("/v1") and request.headers.get("authorization") != f"Bearer {key}":
                return json_response({"error": "Unauthorized"}, 401)
            return inner(request)

        return handle

    def _models(self, _: Request) -> Reply:
        data: list[dict[str, object]] = [
            {
                "id": name,
                "object": "model",
                "created": self._started,
                "owned_by": "vllm",
                "root": self._info.model,
                "parent": None,
                "max_model_len": self._info.max_model_len,
                "permission": [],
            }
            for name in self._info.served_names
        ]
        return json_response({"object": "list", "data": data})

    def _tokenize(self, request: Request) -> Reply:
        try:
            body = request.json()
        except ValueError as error:
            return _error(str(error), 400)
        text = answers.render(body["messages"]) if "messages" in body else str(body.get("prompt", ""))
        tokens = answers.encode(text)
        limit = self._info.max_model_len
        return json_response({"count": len(tokens), "max_model_len": limit, "tokens": tokens, "token_strs": None})

    def _detokenize(self, request: Request) -> Reply:
        try:
            return json_response({"prompt": answers.decode(request.json().get("tokens") or [])})
        except ValueError as error:
            return _error(str(error), 400)

    def _metrics(self, _: Request) -> Reply:
        labels = f'{{engine="0",model_name="{self._info.served_names[0]}"}}'
        values = (
            ("vllm:num_requests_running", "gauge", self._engine.running),
            ("vllm:num_requests_waiting", "gauge", self._engine.waiting),
            ("vllm:kv_cache_usage_perc", "gauge", min(1.0, self._engine.running / 256)),
            ("vllm:prompt_tokens_total", "counter", self._prompt_tokens),
            ("vllm:generation_tokens_total", "counter", self._generated),
            ("vllm:request_success_total", "counter", self._finished),
            ("vllm:nixl_xfer_time_seconds_count", "counter", self._nixl.transfers if self._nixl else 0),
        )
        lines = (f"# TYPE {name} {kind}\n{name}{labels} {float(value)}\n" for name, kind, value in values)
        return Response(200, "".join(lines).encode(), "text/plain; version=1.0.0; charset=utf-8")

    def _complete(self, request: Request, *, chat: bool) -> Reply:
        try:
            generation = parse_request(request, self._info.max_model_len, chat=chat)
            self._check_name(generation.model)
        except BadRequest as error:
            return _error(str(error), error.status)
        try:
            kv_params, question = self._prefill(generation)
        except NixlError as error:
            log(f"ERROR request {generation.request_id}: {error}")
            return _error("KV load failed: the request was aborted because its KV could not be loaded", 500)
        self._prompt_tokens += generation.prompt_tokens
        answer = _answer(generation, question)
        shape = Shape(generation, generation.model or self._info.served_names[0], token_ids=self._info.token_ids)
        pieces = self._decode(request, generation, answer)
        if generation.stream:
            return Stream(self._events(shape, pieces, answer.finish_reason))
        try:
            return json_response(shape.whole(list(pieces), answer.finish_reason, kv_params))
        finally:
            self._engine.finish()

    def _check_name(self, model: str | None) -> None:
        if model is not None and model not in self._info.served_names:
            raise BadRequest(f"The model `{model}` does not exist.", 404)

    def _prefill(self, generation: Generation) -> tuple[dict[str, object] | None, str]:
        """Run or fetch the prompt's KV; returns the parameters for a decode leg and the question the KV holds."""
        question = answers.question_of(generation.prompt)
        params = generation.kv_transfer_params
        if self._nixl is not None and params.get("do_remote_prefill"):
            try:
                fetched = self._nixl.fetch(params)
            except NixlError:
                if self._info.fail_on_load_error:
                    raise
            else:
                self._engine.admit()
                return None, fetched
        self._engine.prefill(self._job(generation, question))
        if self._nixl is not None and params.get("do_remote_decode"):
            kept = self._nixl.keep(generation.internal_id, question, generation.prompt_tokens, self._info.block_size)
            return kept, question
        return None, question

    def _job(self, generation: Generation, question: str) -> Prefill:
        job = Prefill(generation.prompt_tokens, generation.priority if self._info.priorities else 0)
        sender, params = self._sender, generation.kv_transfer_params
        if sender is not None and params.get("tilert_host"):
            handover = sender.handover(generation.internal_id, generation.prompt_tokens, params, question)
            job.on_layer = lambda layer: sender.layer_done(handover, layer)
        return job

    def _decode(self, request: Request, generation: Generation, answer: answers.Answer) -> Iterator[int]:
        """Tokens at the server's pace; stops when the client hangs up."""
        for number, token in enumerate(answer.tokens):
            if number:
                self._engine.next_token()
            if request.gone():
                log(f"INFO Aborted request {generation.request_id}.")
                return
            self._generated += 1
            yield token
        self._finished += 1

    def _events(self, shape: Shape, pieces: Iterator[int], finish_reason: str) -> Generator[bytes]:
        try:
            if shape.generation.chat:
                yield sse(shape.first())
            count = 0
            for token in pieces:
                count += 1
                yield sse(shape.chunk(token))
            yield sse(shape.last(finish_reason))
            if shape.generation.include_usage:
                yield sse(shape.usage_chunk(count))
            yield SSE_DONE
        finally:
            self._engine.finish()


def _answer(generation: Generation, question: str) -> answers.Answer:
    answer = answers.answer_tokens(question, generation.max_tokens, ignore_eos=generation.ignore_eos)
    return answers.stopped(answer, generation.stop)


def _error(message: str, status: int) -> Response:
    kinds = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError"}
    body = {"message": message, "type": kinds.get(status, "Error"), "param": None, "code": status}
    return json_response({"error": body}, status)
