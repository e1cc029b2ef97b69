"""The HTTP side of the decode stand-in: /pd/decode, /pd/cancel, /decode_status, /capabilities, /health."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
import time
from collections.abc import Generator
from typing import Any

from gpufleet.twin import capabilities
from gpufleet.twin.decode_engine import Engine, Job
from gpufleet.twin.httpd import Handler, Reply, Request, Response, Stream, json_response, routes
from gpufleet.twin.kv_receiver import Received, Receiver
from gpufleet.twin.nodefacts import log, stamp

ABANDON_SECONDS = 30.0
_TIMEOUT_SECONDS = 120.0
_KV_POLL_SECONDS = 0.5
_SHORTEST_POLL = 0.001


def poll_seconds() -> float:
    """How long the stream gathers tokens before it sends them on (TILERT_DECODE_POLL_MS, 200 ms unless set)."""
    return max(0.0, float(os.environ.get("TILERT_DECODE_POLL_MS") or "200")) / 1000


class Refused(Exception):
    """A request that ends without decoding: the reply says why."""

    def __init__(self, response: Response, *, abandon: bool = False) -> None:
        super().__init__(response.status)
        self.response = response
        self.abandon = abandon
        """Its KV is on the way and must be drained first."""


class DecodeApp:
    """One request at a time; the second gets 429."""

    def __init__(self, receiver: Receiver, engine: Engine, profile: str) -> None:
        self._receiver = receiver
        self._engine = engine
        self._profile = profile
        self._slot = threading.Lock()
        self._rid: str | None = None
        self._cancel = threading.Event()
        self._poll = poll_seconds()

    def handler(self) -> Handler:
        """The routes of the real program; the rest is 404."""
        return routes(
            {
                ("GET", "/health"): lambda _: json_response({"status": "ok"}),
                ("GET", "/capabilities"): self._capabilities,
                ("GET", "/decode_status"): self._status,
                ("POST", "/pd/cancel"): self._cancel_request,
                ("POST", "/pd/decode"): self._decode,
            }
        )

    def _capabilities(self, _: Request) -> Reply:
        offered = {
            "penalties": self._engine.supports_penalties,
            "ignore_eos": True,
            "logprobs": self._engine.supports_logprobs,
        }
        return json_response({"profile": self._profile, "engine": self._engine.name, "capabilities": offered})

    def _status(self, _: Request) -> Reply:
        return json_response({"status": "busy" if self._slot.locked() else "idle", "current_rid": self._rid})

    def _cancel_request(self, request: Request) -> Reply:
        rid = request.json().get("rid")
        if rid and rid == self._rid:
            self._cancel.set()
            log(f"{stamp()} pd_vllm.decode_server cancel requested for {rid}")
            return json_response({"cancelled": rid})
        return json_response({"error": "no matching in-flight request", "current_rid": self._rid}, 404)

    def _decode(self, request: Request) -> Reply:
        problem = _body_problem(request)
        if problem is not None:
            return problem
        body = request.json()
        if not self._slot.acquire(blocking=False):
            return json_response({"error": "busy", "current_rid": self._rid}, 429)
        rid = str(body["rid"])
        self._rid, self._cancel = rid, threading.Event()
        self._receiver.expect(rid)
        started = time.monotonic()
        try:
            self._check(body)
            received = self._await_kv(rid, float(body.get("timeout_s", _TIMEOUT_SECONDS)))
        except Refused as refusal:
            self._abandon(rid) if refusal.abandon else None
            self._free()
            return refusal.response
        return self._run(request, body, received, started)

    def _check(self, body: dict[str, Any]) -> None:
        if body.get("top_logprobs") is not None and not self._engine.supports_logprobs:
            error = f"{self._engine.name} does not produce logprobs"
            raise Refused(json_response({"error": error, "error_type": "logprobs_unavailable"}, 501), abandon=True)
        caps = capabilities.NodeCapabilities(self._engine.supports_penalties, ignore_eos=True)
        try:
            capabilities.validate(body.get("sampling") or {}, caps)
        except capabilities.CapabilityError as error:
            raise Refused(json_response(error.payload(), error.status), abandon=True) from None
        if body.get("grammar_spec") is not None and not self._engine.supports_grammar:
            error_body = {"error": "constrained decoding is not supported", "error_type": "grammar_unsupported"}
            raise Refused(json_response(error_body, 501), abandon=True)

    def _await_kv(self, rid: str, timeout: float) -> Received:
        received = self._drain(rid, timeout)
        if self._cancel.is_set():
            error = {"error": "cancelled during KV transfer", "error_type": "request_cancelled", "rid": rid}
            raise Refused(json_response(error, 499))
        if received is None:
            raise Refused(json_response({"error": "kv_transfer_timeout", "rid": rid}, 504))
        return received

    def _drain(self, rid: str, timeout: float) -> Received | None:
        """Wait for the KV of ``rid``; None when time is up or the request was cancelled."""
        deadline = time.monotonic() + timeout
        while not self._cancel.is_set():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return None
            with contextlib.suppress(queue.Empty):
                received = self._receiver.completed.get(timeout=min(remaining, _KV_POLL_SECONDS))
                if received.rid == rid:
                    return received
                log(f"{stamp()} pd_vllm.decode_server dropping unmatched request {received.rid} (waiting for {rid})")
                self._receiver.release(received.rid)
        return None

    def _abandon(self, rid: str) -> None:
        if self._drain(rid, ABANDON_SECONDS) is None:
            log(f"{stamp()} pd_vllm.decode_server abandoned {rid}: its KV did not arrive within {ABANDON_SECONDS:.0f}s")

    def _free(self) -> None:
        if self._rid:
            self._receiver.release(self._rid)
        self._rid = None
        self._slot.release()

    def _run(self, request: Request, body: dict[str, Any], received: Received, started: float) -> Reply:
        wire_wait = round(1000 * (time.monotonic() - started), 1)
        timing: dict[str, Any] = {"wire_wait": wire_wait, "convert": 0.1, "inject": 0.1}
        job = Job(body, self._receiver.kv_text(), received.seq_len)
        job.cancel = self._cancel
        run = _Run(self._engine, job, timing)
        if body.get("stream"):
            return Stream(self._lines(request, run, received), "application/x-ndjson")
        try:
            run.decode(lambda _: None)
            self._log_request(received, run)
            whole = {"rid": received.rid, "token_ids": run.tokens, "seq_len": received.seq_len, "timing_ms": timing}
            return json_response(whole)
        finally:
            self._free()

    def _lines(self, request: Request, run: _Run, received: Received) -> Generator[bytes]:
        """The first token at once, then what gathered during each poll, then the closing line."""
        ready: queue.Queue[int | None] = queue.Queue()
        ended = threading.Event()
        worker = threading.Thread(target=_work, args=(run, ready, ended), daemon=True)
        worker.start()
        try:
            yield _line({"t": [ready.get()]})
            while True:
                over = ended.wait(max(self._poll, _SHORTEST_POLL))
                batch = _drained(ready)
                if batch:
                    yield _line({"t": batch})
                if over and ready.empty():
                    break
                if request.gone():
                    return
            self._log_request(received, run)
            yield _line(
                {
                    "done": True,
                    "n": len(run.tokens),
                    "seq_len": received.seq_len,
                    "finish_reason": run.timing["finish_reason"],
                    "timing_ms": run.timing,
                }
            )
        finally:
            run.job.cancel.set()
            worker.join(_TIMEOUT_SECONDS)
            self._free()

    def _log_request(self, received: Received, run: _Run) -> None:
        values = " ".join(f"{key}={value}" for key, value in run.timing.items())
        log(
            f"{stamp()} pd_vllm.decode_server REQSTAT rid={received.rid} seq={received.seq_len} "
            f"completion={len(run.tokens)} {values}"
        )


class _Run:
    """One decode and what came out of it."""

    def __init__(self, engine: Engine, job: Job, timing: dict[str, Any]) -> None:
        self.engine = engine
        self.job = job
        self.timing = timing
        self.tokens: list[int] = []

    def decode(self, on_token: Any) -> None:
        started = time.monotonic()

        def emit(token: int) -> None:
            self.tokens.append(token)
            on_token(token)

        stats = self.engine.decode(self.job, emit)
        self.timing |= {"decode": round(1000 * (time.monotonic() - started), 1), **stats}


def _work(run: _Run, ready: queue.Queue[int | None], ended: threading.Event) -> None:
    run.decode(ready.put)
    ended.set()


def _drained(ready: queue.Queue[int | None]) -> list[int | None]:
    batch = []
    with contextlib.suppress(queue.Empty):
        while True:
            batch.append(ready.get_nowait())
    return batch


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _body_problem(request: Request) -> Response | None:
    """What pydantic would refuse, as 422."""
    try:
        body = request.json()
    except ValueError as error:
        return json_response({"detail": [{"type": "json_invalid", "loc": ["body"], "msg": str(error)}]}, 422)
    for name, kind in (("rid", str), ("first_token_id", int)):
        if not isinstance(body.get(name), kind):
            return json_response({"detail": [{"type": "missing", "loc": ["body", name], "msg": "Field required"}]}, 422)
    return None
