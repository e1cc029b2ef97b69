"""The HTTP side of the vllm-router stand-in."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from typing import Any

from gpufleet.twin.httpd import Handler, Reply, Request, Response, Stream, json_response
from gpufleet.twin.nodefacts import log
from gpufleet.twin.upstream import Answer, OpenAnswer, UpstreamError, call, fetch

_PREFILL_PARAMS = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


class Worker:
    """One vLLM server behind the router."""

    def __init__(self, url: str, kind: str, bootstrap_port: int | None = None) -> None:
        self.url = url.rstrip("/")
        self.kind = kind
        self.bootstrap_port = bootstrap_port
        self.healthy = True
        self.streak = 0
        """Health checks in a row that contradict ``healthy``."""
        self.load = 0

    def probe(self, path: str, timeout: float) -> bool:
        """Whether it answers its health check now."""
        try:
            return fetch("GET", f"{self.url}{path}", timeout=timeout).status == 200
        except UpstreamError:
            return False

    def shown(self) -> dict[str, Any]:
        """As /workers shows it."""
        shown: dict[str, Any] = {
            "url": self.url,
            "model_id": "unknown",
            "worker_type": self.kind,
            "is_healthy": self.healthy,
            "load": self.load,
            "connection_mode": "Http",
            "priority": 50,
            "cost": 1.0,
        }
        return shown | {"bootstrap_port": self.bootstrap_port} if self.kind == "prefill" else shown


class Workers:
    """The pool: round robin over those that are healthy."""

    def __init__(self, workers: list[Worker], failures: int, successes: int) -> None:
        self.all = workers
        self._failures = failures
        self._successes = successes
        self._lock = threading.Lock()
        self._turn = {"prefill": 0, "decode": 0, "regular": 0}

    def of(self, kind: str) -> list[Worker]:
        """All of one kind."""
        return [worker for worker in self.all if worker.kind == kind]

    def healthy(self, kind: str) -> list[Worker]:
        """Those of one kind that get requests."""
        return [worker for worker in self.of(kind) if worker.healthy]

    def pick(self, kind: str) -> Worker | None:
        """The next in turn."""
        with self._lock:
            candidates = self.healthy(kind)
            if not candidates:
                return None
            self._turn[kind] += 1
            return candidates[self._turn[kind] % len(candidates)]

    def remove(self, url: str) -> bool:
        """Whether ``url`` was in the pool."""
        before = len(self.all)
        self.all = [worker for worker in self.all if worker.url != url]
        return len(self.all) < before

    def check(self, path: str, timeout: float) -> None:
        """One round of health checks; several in a row are needed to change a worker's state."""
        for worker in self.all:
            if worker.probe(path, timeout) is worker.healthy:
                worker.streak = 0
                continue
            worker.streak += 1
            if worker.streak >= (self._failures if worker.healthy else self._successes):
                worker.healthy, worker.streak = not worker.healthy, 0
                log(f"INFO worker {worker.url} is now {'healthy' if worker.healthy else 'unhealthy'}")


class RouterApp:
    """Routes and proxying."""

    def __init__(self, workers: Workers, *, request_seconds: float, disaggregated: bool) -> None:
        self._workers = workers
        self._seconds = request_seconds
        self._disaggregated = disaggregated
        self._served: dict[str, int] = {}

    def handler(self) -> Handler:
        """Known GET paths, then every POST is proxied."""
        gets: dict[str, Handler] = {
            "/health": self._health,
            "/liveness": lambda _: _text(200, "OK"),
            "/readiness": self._readiness,
            "/workers": self._list,
            "/list_workers": lambda _: json_response({"urls": [worker.url for worker in self._workers.all]}),
            "/v1/models": self._models,
        }
        posts: dict[str, Handler] = {
            "/add_worker": lambda _: _text(
                400, "PD router requires specific add_prefill_server or add_decode_server methods"
            ),
            "/v1/chat/completions": self._complete,
            "/v1/completions": self._complete,
        }

        def handle(request: Request) -> Reply:
            if request.method == "POST":
                return posts.get(request.path, self._complete)(request)
            known = gets.get(request.path)
            return known(request) if known else _text(405, "Only POST requests are supported for transparent proxy")

        return handle

    def metrics_handler(self) -> Handler:
        """/metrics on the Prometheus port."""

        def handle(_: Request) -> Reply:
            name = "vllm_router_pd_decode_requests_total"
            lines = [f'{name}{{worker="{url}"}} {count}\n' for url, count in self._served.items()]
            return Response(200, f"# TYPE {name} counter\n{''.join(lines)}".encode(), "text/plain")

        return handle

    def _health(self, _: Request) -> Reply:
        bad = [f'"{w.kind.capitalize()}: {w.url}"' for w in self._workers.all if not w.healthy]
        return _text(503, f"Unhealthy servers: [{', '.join(bad)}]") if bad else _text(200, "All servers healthy")

    def _readiness(self, _: Request) -> Reply:
        counts = {
            kind: {"healthy": len(self._workers.healthy(kind)), "total": len(self._workers.of(kind))}
            for kind in self._kinds()
        }
        missing = [kind for kind, count in counts.items() if not count["healthy"]]
        if missing:
            reason = f"no healthy {missing[0]} workers"
            return json_response({"status": "not_ready", "reason": reason} | counts, 503)
        return json_response({"status": "ready"} | counts)

    def _kinds(self) -> tuple[str, ...]:
        return ("prefill", "decode") if self._disaggregated else ("regular",)

    def _list(self, _: Request) -> Reply:
        workers = self._workers
        stats = {f"{kind}_count": len(workers.of(kind)) for kind in ("prefill", "decode", "regular")}
        shown = [worker.shown() for worker in workers.all]
        return json_response({"workers": shown, "total": len(shown), "stats": stats})

    def _models(self, _: Request) -> Reply:
        kind = self._kinds()[0]
        worker = self._workers.pick(kind)
        if worker is None:
            return _text(503, f"No {kind} servers available")
        try:
            return _relayed(fetch("GET", f"{worker.url}/v1/models", timeout=self._seconds))
        except UpstreamError as error:
            return _text(500, f"Failed to get models: {error}")

    def _complete(self, request: Request) -> Reply:
        if "application/json" not in request.headers.get("content-type", ""):
            return _text(415, "Expected request with `Content-Type: application/json`")
        try:
            body = request.json()
        except ValueError as error:
            return _text(400, f"Failed to parse the request body as JSON: {error}")
        if self._disaggregated:
            return self._two_legs(request, body)
        worker = self._workers.pick("regular")
        if worker is None:
            return _text(503, "No available workers (all circuits open or unhealthy)")
        return self._last_leg(request, worker, body, {})

    def _two_legs(self, request: Request, body: dict[str, Any]) -> Reply:
        prefill, decode = self._workers.pick("prefill"), self._workers.pick("decode")
        if prefill is None or decode is None:
            counts = f"{len(self._workers.healthy('prefill'))} prefill, {len(self._workers.healthy('decode'))} decode"
            return _text(503, f"No available workers: {counts}")
        names = f"___prefill_addr_{_authority(prefill)}___decode_addr_{_authority(decode)}"
        headers = {"x-request-id": f"{names}_{os.urandom(16).hex()}"}
        try:
            first = self._first_leg(request, prefill, body, headers)
        except UpstreamError as error:
            return _failed(f"Prefill request failed to {prefill.url}{request.path}: {error}")
        if first.status != 200:
            return _relayed(first)
        params = (first.json() or {}).get("kv_transfer_params")
        return self._last_leg(request, decode, body | {"kv_transfer_params": params}, headers)

    def _first_leg(self, request: Request, worker: Worker, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        leg = {name: value for name, value in body.items() if name not in ("stream_options", "max_completion_tokens")}
        leg |= {"max_tokens": 1, "stream": False, "kv_transfer_params": _PREFILL_PARAMS}
        worker.load += 1
        try:
            answer = call("POST", f"{worker.url}{request.path}", leg, timeout=self._seconds, headers=headers)
            if answer is None:
                raise UpstreamError("abandoned")
            return answer.read()
        finally:
            worker.load -= 1

    def _last_leg(self, request: Request, worker: Worker, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        self._served[worker.url] = self._served.get(worker.url, 0) + 1
        try:
            answer = call(
                "POST",
                f"{worker.url}{request.path}",
                body,
                timeout=self._seconds,
                headers=headers,
                gone=request.gone,
            )
            if answer is None:
                return _text(499, "client disconnected")
            if answer.content_type.startswith("text/event-stream"):
                return Stream(_relay(answer, worker), answer.content_type)
            return _relayed(answer.read())
        except UpstreamError as error:
            return _failed(f"Decode request failed to {worker.url}{request.path}: {error}")


def _relay(answer: OpenAnswer, worker: Worker) -> Generator[bytes]:
    """Pass a stream on; closing it ends the request at the worker."""
    worker.load += 1
    try:
        with answer:
            yield from answer.chunks()
    finally:
        worker.load -= 1


def _relayed(answer: Answer) -> Response:
    return Response(answer.status, answer.body, answer.content_type)


def _authority(worker: Worker) -> str:
    return worker.url.partition("://")[2]


def _failed(reason: str) -> Response:
    log(f"ERROR Transparent proxy request failed: {reason}")
    return _text(500, f"Transparent proxy request failed: Network error: {reason}")


def _text(status: int, text: str) -> Response:
    return Response(status, text.encode(), "text/plain; charset=utf-8")
