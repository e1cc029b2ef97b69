"""A real HAProxy in front of small servers that can hold a request open for as long as a test wants."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from gpufleet.routing.config import ChannelRule, Probe, RouterConfig, Server
from gpufleet.routing.errors import RouterGone
from gpufleet.routing.haproxy import CONFIG_FILE, KEYS_FILE, PEM_FILE, SOCKET_FILE, render_haproxy, render_keys_map
from gpufleet.routing.runtime import RuntimeApi
from gpufleet.spec.model import RequestClass

KEYS = {"chat": "chat-key-1f2e", "vip": "vip-key-77aa", "batch": "batch-key-90cd"}
CHANNELS = (
    ChannelRule("chat", RequestClass.INTERACTIVE, 0),
    ChannelRule("vip", RequestClass.INTERACTIVE, 10),
    ChannelRule("batch", RequestClass.BATCH, 0),
)
_numbers = itertools.count(1)


def free_address() -> tuple[str, int]:
    """An address of 127.69.0.0/16 and a port that nothing listens on."""
    host = f"127.69.{os.getpid() % 250 + 1}.{next(_numbers) % 250 + 1}"
    with socket.socket() as probe:
        probe.bind((host, 0))
        return host, probe.getsockname()[1]


def until(condition: Callable[[], Any], what: str, seconds: float = 20.0) -> Any:
    """Poll until the condition is true; its value."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"did not happen within {seconds} s: {what}")


class Backend:
    """An OpenAI-like server. Requests stop in the middle of their answer while its gate is shut."""

    def __init__(self, name: str, address: tuple[str, int] | None = None) -> None:
        self.name = name
        self.address = address or free_address()
        self.gate = threading.Event()
        self.gate.set()
        self.healthy = True
        self.requests: list[dict[str, Any]] = []
        self.running = 0
        self.most_at_once = 0
        self.broken = 0
        """Answers that could not be sent to their end."""
        self.lease: AbstractContextManager[Any] = nullcontext()
        """A lock makes later requests wait before they count, as pd_router does."""
        self.script: Callable[[BaseHTTPRequestHandler], bool] = lambda _: False
        """Answers a request instead of the usual way when it returns True."""
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> Backend:
        backend = self

        class Handler(_Handler):
            owner = backend

        server = ThreadingHTTPServer(self.address, Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        self._server = server
        return self

    def stop(self) -> None:
        """Stop listening: as a dead program."""
        if self._server:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        self.gate.set()

    def texts(self) -> list[str]:
        """What the callers said, in order of arrival."""
        return [
            r["body"]["messages"][-1]["content"]
            for r in self.requests
            if isinstance(r["body"], dict) and "messages" in r["body"]
        ]

    @contextmanager
    def counted(self, request: dict[str, Any]) -> Iterator[Callable[[], None]]:
        """Counts a request until the block ends or the yielded function is called, before the last byte goes out."""
        with self._lock:
            self.requests.append(request)
            self.running += 1
            self.most_at_once = max(self.most_at_once, self.running)
        with ExitStack() as stack:
            stack.callback(self._leave)
            yield stack.close

    def _leave(self) -> None:
        with self._lock:
            self.running -= 1


class _Handler(BaseHTTPRequestHandler):
    owner: Backend
    protocol_version = "HTTP/1.1"
    leave: Callable[[], None] = staticmethod(lambda: None)

    def log_message(self, *args: object) -> None: ...

    def do_GET(self) -> None:
        if self.path == "/health":
            with suppress(OSError):
                self._json(200 if self.owner.healthy else 503, {"status": "ok"})
            return
        with self.owner.counted({"path": self.path, "headers": dict(self.headers), "body": None}) as self.leave:
            return self._json(200, {"path": self.path, "data": []})

    def do_POST(self) -> None:
        raw = self._read_body()
        body = None
        with suppress(ValueError):
            body = json.loads(raw)
        request = {"path": self.path, "headers": dict(self.headers), "body": body}
        with self.owner.lease, self.owner.counted(request) as self.leave:
            if self.owner.script(self):
                return
            try:
                self._stream() if isinstance(body, dict) and body.get("stream") else self._whole()
            except OSError:
                self.owner.broken += 1

    def _read_body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _whole(self) -> None:
        self.owner.gate.wait()
        choice = {"index": 0, "message": {"role": "assistant", "content": "hello world"}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
        self._json(
            200,
            {"id": "x", "object": "chat.completion", "created": 1, "model": "glm5", "choices": [choice]}
            | {"usage": usage},
        )

    def _stream(self) -> None:
        self.start_stream()
        self.event({"content": "hello "})
        self.owner.gate.wait()
        self.event({"content": "world"})
        self.event({}, "stop")
        self.leave()
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def start_stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def event(self, delta: dict[str, str], finish: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        event = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "glm5", "choices": [choice]}
        self.chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _json(self, status: int, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.leave()
        self.wfile.write(data)


@dataclass
class Router:
    """A running HAProxy and what stands behind it."""

    config: RouterConfig
    cells: list[Backend]
    decodes: list[Backend]
    native: Backend
    process: subprocess.Popen[bytes]
    scheme: str = "http"
    threads: list[threading.Thread] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.config.listen_host}:{self.config.listen_port}"

    @property
    def directory(self) -> Path:
        return Path(self.config.directory)

    @property
    def api(self) -> RuntimeApi:
        return RuntimeApi(self.directory / SOCKET_FILE)

    @property
    def log(self) -> str:
        return (self.directory / "haproxy.log").read_text(errors="replace")

    def post(
        self, text: str = "hi", *, channel: str = "chat", path: str = "/v1/chat/completions", **fields: Any
    ) -> httpx.Response:
        """One request, to its end."""
        body = {"model": "glm5", "messages": [{"role": "user", "content": text}], "max_tokens": 8, **fields}
        return self.send(json.dumps({k: v for k, v in body.items() if v is not _LEFT_OUT}).encode(), channel, path)

    def send(self, content: Any, channel: str = "chat", path: str = "/v1/chat/completions") -> httpx.Response:
        headers = {"authorization": f"Bearer {KEYS[channel]}", "content-type": "application/json"}
        return httpx.post(
            f"{self.url}{path}", content=content, headers=headers, timeout=60, verify=False, trust_env=False
        )

    def background(self, text: str, **fields: Any) -> Background:
        """One request, in a thread of its own."""
        return Background(lambda: self.post(text, **fields))

    def served_by(self, **fields: Any) -> str:
        """Which server answered."""
        response = self.post(**fields)
        assert response.status_code == 200, response.text
        return response.headers["x-gpufleet-served-by"]

    def up(self) -> dict[str, bool]:
        return {s.name: s.up for s in self.api.servers() if s.backend == ("tilert" if s.name != "native" else "native")}

    def save_state(self) -> None:
        """As the playbook does before it reloads."""
        lines = self.api._ask("show servers state").splitlines()
        kept = [line for number, line in enumerate(lines) if number < 2 or int((line.split() or [0] * 7)[6]) > 0]
        (self.directory / "server-state").write_text("\n".join(kept) + "\n")

    def reload(self, **changes: Any) -> None:
        """Write a changed configuration and reload, as the playbook does."""
        self.config = replace(self.config, **changes)
        write_files(self.config)
        old = self.api.info()["Pid"]
        changed = lambda: self.api.info()["Pid"] != old  # noqa: E731
        for _ in range(5):
            self.process.send_signal(signal.SIGUSR2)  # a master that is still starting loses it
            with suppress(AssertionError):
                return until(changed, "the new HAProxy answers", seconds=3)
        raise AssertionError(self.log)


_LEFT_OUT = object()
LEFT_OUT: Any = _LEFT_OUT


class Background:
    """A request that runs while the test goes on."""

    def __init__(self, call: Callable[[], httpx.Response]) -> None:
        self._call = call
        self._response: httpx.Response | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._response = self._call()
        except (httpx.HTTPError, OSError) as error:
            self._error = error

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> httpx.Response:
        self._thread.join(30)
        if self._error:
            raise self._error
        assert self._response is not None, "the request did not end"
        return self._response


def write_files(config: RouterConfig, pem: str = "") -> None:
    directory = Path(config.directory)
    (directory / KEYS_FILE).write_text(render_keys_map(KEYS))
    (directory / CONFIG_FILE).write_text(render_haproxy(config))
    if not (directory / "server-state").exists():
        (directory / "server-state").write_text("1\n")
    if pem:
        (directory / PEM_FILE).write_text(pem)


@contextmanager
def router(*, cells: int = 2, native: bool = True, pem: str = "", **settings: Any) -> Iterator[Router]:
    """HAProxy with ``cells`` cells (a router and a decode node each) and one native server."""
    with ExitStack() as stack:
        directory = tempfile.mkdtemp(prefix="gfr-", dir="/tmp")
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        fronts = [_started(stack, f"cell-decode-{i}") for i in range(cells)]
        decodes = [_started(stack, f"decode-{i}") for i in range(cells)]
        bulk = _started(stack, "native")
        host, port = free_address()
        values: dict[str, Any] = {
            "fleet": "demo",
            "listen_host": host,
            "listen_port": port,
            "directory": directory,
            "tls": bool(pem),
            "cells": tuple(cell_server(f, d) for f, d in zip(fronts, decodes, strict=True)),
            "native": (Server("native", *bulk.address),) if native else (),
            "channels": CHANNELS,
            "spill_queue": 4,
            "queue_timeout_s": 60,
            "without_max_tokens_native": True,
        }
        config = RouterConfig(**{**values, **settings})
        write_files(config, pem)
        process = _start(stack, config)
        running = Router(config, fronts, decodes, bulk, process, "https" if pem else "http")
        until(lambda: _answers(running), f"HAProxy answers: {running.log}")
        yield running


def cell_server(front: Backend, decode: Backend) -> Server:
    return Server(front.name, *front.address, probes=(Probe(*front.address), Probe(*decode.address)))


def _started(stack: ExitStack, name: str) -> Backend:
    backend = Backend(name).start()
    stack.callback(backend.stop)
    return backend


def _start(stack: ExitStack, config: RouterConfig) -> subprocess.Popen[bytes]:
    log = stack.enter_context((Path(config.directory) / "haproxy.log").open("wb"))
    command = ["haproxy", "-W", "-f", f"{config.directory}/{CONFIG_FILE}"]
    process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)

    def end() -> None:
        process.terminate()
        process.wait(10)

    stack.callback(end)
    return process


def _answers(running: Router) -> bool:
    try:
        return (
            bool(running.api.info())
            and httpx.get(f"{running.url}/health", verify=False, trust_env=False).status_code > 0
        )
    except (httpx.HTTPError, RouterGone):
        return False
