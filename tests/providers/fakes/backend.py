"""What the fakes share: routes, the check of the key, a stock, and instances that move on when they are looked at."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qsl, unquote, urlsplit

import httpx
import respx

KEY = "the-key-that-nobody-may-see"
MOST_DISK_GB = 20_000


@dataclass(frozen=True)
class Call:
    """One request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    parts: tuple[str, ...] = ()
    """What the route's groups matched."""


@dataclass(frozen=True)
class Answer:
    """One answer; a text body is sent as it is."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def content(self) -> bytes:
        if self.body is None:
            return b""
        return self.body.encode() if isinstance(self.body, str) else json.dumps(self.body).encode()


class Refused(Exception):
    """Ends a handler with a failure."""

    def __init__(self, status: int, body: Any, **headers: str) -> None:
        super().__init__(str(body))
        self.answer = Answer(status, body, dict(headers))


@dataclass
class Made:
    """One instance, from its create to its end."""

    id: str
    key: str
    kind: str
    region: str
    wanted: dict[str, Any]
    created: datetime
    looks: int = 0
    ending: int | None = None
    """Looks since its end was asked for."""
    ended: datetime | None = None
    cluster: str | None = None
    rank: int | None = None

    @property
    def address(self) -> str:
        return f"203.0.113.{int(re.sub('[^0-9]', '', self.id)[-3:] or 0) % 250 + 1}"


Handler = Callable[[Call], Answer]
ORDER = ("provisioning", "booting", "running")


class Backend:
    """A provider. Subclasses add routes, words for states, and their own refusals."""

    states: ClassVar[dict[str, str]] = {}
    """Their word for each of ``provisioning``, ``booting``, ``running``, ``terminating``, ``terminated``."""
    ids = "i-{}"
    forgets = True
    """What has ended is no longer told."""

    def __init__(self) -> None:
        self.stock: dict[tuple[str, str], int] = {}
        """(kind, region) to how many are left."""
        self.made: dict[str, Made] = {}
        self.calls: list[Call] = []
        self.faults: list[tuple[str, str, Handler]] = []
        """(method, path pattern, handler): used once, before the real route; a handler may let the real one run."""
        self.ssh_keys: dict[str, dict[str, str]] = {}
        self._numbers = itertools.count(100)
        self._lock = threading.RLock()

    def routes(self) -> list[tuple[str, str, Handler]]:
        raise NotImplementedError

    def authorized(self, call: Call) -> bool:
        return call.headers.get("authorization") == f"Bearer {KEY}"

    def unauthorized(self) -> Answer:
        return Answer(401, {"message": "Invalid API key"})

    def handle(self, call: Call) -> Answer:
        with self._lock:
            self.calls.append(call)
            try:
                return self._handle(call)
            except Refused as refused:
                return refused.answer

    def _handle(self, call: Call) -> Answer:
        for position, (method, pattern, handler) in enumerate(self.faults):
            if method == call.method and re.search(pattern, call.path):
                del self.faults[position]
                return handler(call)
        return self.answer(call)

    def answer(self, call: Call) -> Answer:
        """Without faults."""
        if not self.authorized(call):
            return self.unauthorized()
        for method, pattern, handler in self.routes():
            found = re.fullmatch(pattern, call.path)
            if found and method == call.method:
                groups = tuple(unquote(part) for part in found.groups())
                return handler(Call(call.method, call.path, call.query, call.headers, call.body, groups))
        return Answer(404, {"message": f"no route {call.method} {call.path}"})

    def rent(self, kind: str, region: str, key: str, wanted: dict[str, Any], **more: Any) -> Made:
        self.stock[kind, region] -= 1
        number = self.ids.format(next(self._numbers))
        made = Made(number, key, kind, region, wanted, datetime.now(UTC), **more)
        self.made[number] = made
        return made

    def shown(self) -> list[Made]:
        """What a listing tells; looking moves everything on."""
        for made in self.made.values():
            self.look(made)
        return [m for m in self.made.values() if m.ended is None or not self.forgets]

    def one(self, instance_id: str) -> Made | None:
        made = self.made.get(instance_id)
        if made is not None:
            self.look(made)
        return None if made is None or (made.ended and self.forgets) else made

    def look(self, made: Made) -> None:
        made.looks += 1
        if made.ending is not None and made.ended is None:
            made.ending += 1
            if made.ending > 1:
                made.ended = datetime.now(UTC)
                self.stock[made.kind, made.region] += 1

    def state(self, made: Made) -> str:
        if made.ended:
            return self.states["terminated"]
        if made.ending is not None:
            return self.states.get("terminating", self.states["running"])
        return self.states[ORDER[min(made.looks, 3) - 1 if made.looks else 0]]

    def end(self, instance_id: str) -> Made | None:
        made = self.made.get(instance_id)
        if made is None or (made.ended and self.forgets):
            return None
        if made.ending is None:
            made.ending = 0
        return made

    def running(self, made: Made) -> bool:
        return made.looks >= 3 and made.ending is None

    def add_key(self, row: dict[str, str]) -> str:
        ref = f"key-{next(self._numbers)}"
        self.ssh_keys[ref] = {"id": ref, **row}
        return ref


def known_fields(body: Any, *names: str) -> None:
    """Refuse what the real one would not know."""
    strange = sorted(set(body or {}) - set(names))
    if strange:
        raise Refused(422, {"message": f"unknown field {strange[0]}", "code": "invalid_request"})


@contextmanager
def served(backend: Backend, host: str = "127.71.0.1") -> Iterator[str]:
    """The backend at a real address (for other processes), and under respx in this one. Yields its base URL."""
    server = ThreadingHTTPServer((host, 0), _handler(backend))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    url = f"http://{host}:{server.server_address[1]}"
    try:
        with respx.mock(base_url=url, assert_all_called=False) as router:
            router.route().mock(side_effect=lambda request: _reply(backend, request))
            yield url
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _reply(backend: Backend, request: httpx.Request) -> httpx.Response:
    answer = backend.handle(_call(request.method, str(request.url), dict(request.headers), request.content))
    return httpx.Response(answer.status, content=answer.content, headers=answer.headers)


def _call(method: str, url: str, headers: dict[str, str], content: bytes) -> Call:
    parts = urlsplit(url)
    body = json.loads(content) if content else None
    lower = {name.lower(): value for name, value in headers.items()}
    return Call(method, parts.path, dict(parse_qsl(parts.query)), lower, body)


def _handler(backend: Backend) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length") or 0))
            answer = backend.handle(_call(self.command, self.path, dict(self.headers), content))
            self.send_response(answer.status)
            for name, value in {**answer.headers, "content-length": str(len(answer.content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_POST = do_PUT = do_DELETE = _do  # noqa: N815 - names that http.server looks for

        def log_message(self, format: str, *arguments: Any) -> None:
            """Quiet."""

    return Handler
