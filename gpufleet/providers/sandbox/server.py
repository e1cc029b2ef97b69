"""The HTTP server: loopback only, in memory, refusing what a provider would refuse."""

from __future__ import annotations

import itertools
import json
import re
import secrets
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from gpufleet.errors import UsageError
from gpufleet.providers.rest.description import Description, ErrorRule, Paging
from gpufleet.providers.rest.values import offer_values
from gpufleet.providers.sandbox.inverse import place, put
from gpufleet.providers.sandbox.market import GPUS, MOST_DISK_GB, SAMPLES, Market
from gpufleet.providers.sandbox.requests import Incoming, matched, operations, speaks_of, told, unknown_field

_PHRASES = (
    "no capacity left: not available, out of stock, insufficient capacity",
    "there are no longer any instances available",
    "no_such_ask: sold out",
)
Reply = tuple[int, Any]


class Sandbox:
    """One provider file as a provider. `key` is the one it takes."""

    def __init__(self, name: str, description: Description, *, key: str | None = None) -> None:
        self.description = description
        self.key = key or f"sandbox-{secrets.token_hex(8)}"
        self.client_id = "sandbox-client"
        self._market = Market(name, description)
        self._ssh_keys: dict[str, dict[str, str]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    @property
    def needs_client_id(self) -> bool:
        """Whether it takes client credentials."""
        return self.description.auth.type == "oauth2"

    def answer(self, came: Incoming) -> Reply:
        """The answer to one request."""
        with self._lock:
            for operation, request in operations(self.description):
                found = matched(request, came)
                if found is not None:
                    if operation != "token" and not self._is_authorized(found):
                        return 401, self._failure("auth", "the key is not valid")
                    return self._do(operation, found)
        return 404, self._failure("not-found", f"the file describes no {came.method} {came.path}")

    def _do(self, operation: str, came: Incoming) -> Reply:
        kind, _, name = operation.partition(":")
        doing: dict[str, Callable[[Incoming], Reply]] = {
            "token": self._token,
            "whoami": lambda _: (
                200,
                place(self.description.whoami.account, "sandbox") if self.description.whoami else {},
            ),
            "offers": self._offers,
            "also": lambda _: (200, self._market.bodies()[1].get(name, [])),
            "create": self._create,
            "list": self._list,
            "get": self._get,
            "terminate": self._terminate,
            "ssh_keys": self._keys,
            "create_ssh_key": self._new_key,
            "delete_ssh_key": self._drop_key,
            "extras": lambda _: (200, place(self._extras_items(name), [])),
            "clusters": lambda _: (200, place(self._clusters.list.items, [])),
            "cluster_offers": lambda _: (200, place(self._clusters.offers.items if self._clusters.offers else "@", [])),
            "cluster_also": lambda _: (200, []),
        }
        return doing[kind](came)

    def _is_authorized(self, came: Incoming) -> bool:
        auth = self.description.auth
        match auth.type:
            case "query":
                return came.query.get(auth.name) == self.key
            case "header":
                return came.headers.get(auth.name.lower()) == auth.prefix + self.key
            case "bearer":
                return came.headers.get("authorization") == f"Bearer {self.key}"
            case "oauth2":
                return came.headers.get("authorization") == f"Bearer token-{self.key}"

    def _whoami(self, _: Incoming) -> Reply:
        shape = self.description.whoami
        return 200, place(shape.account, "sandbox") if shape else {}

    def _token(self, came: Incoming) -> Reply:
        sent = came.body if isinstance(came.body, dict) else {}
        if (sent.get("client_id"), sent.get("client_secret")) != (self.client_id, self.key):
            return 401, self._failure("auth", "the client is not known")
        return 200, {"access_token": f"token-{self.key}", "expires_in": 3600}

    def _offers(self, came: Incoming) -> Reply:
        shape = self.description.offers
        wanted, count = told(shape.request, came, "query.gpu"), told(shape.request, came, "query.gpu_count")
        left = [sample for sample, number in self._market.stock.items() if number > 0]
        rows = dict(zip(left, self._market.bodies()[0], strict=True))
        fitting = [
            rows[s] for s in left if wanted in {None, "", SAMPLES[s][0]} and count in {None, "", GPUS, str(GPUS)}
        ]
        return 200, self._paged(shape.items, shape.paging, fitting, came)

    def _create(self, came: Incoming) -> Reply:
        create = self.description.create
        if strange := unknown_field(create.request, came):
            return 422, self._failure("invalid", f"{strange}: unknown field")
        disk = told(create.request, came, "request.disk_gb")
        if disk is not None and int(disk) > MOST_DISK_GB:
            return 422, self._failure("invalid", "the disk is larger than any machine has")
        option = self.description.settings
        for sample, offer in self._market.offers():
            if speaks_of(create.request, came, {"offer": offer_values(offer), "option": option}):
                if self._market.stock[sample] <= 0:
                    return self._no_capacity()
                made = self._market.rent(sample, str(told(create.request, came, "request.key") or ""))
                roots: dict[str, Any] = {"body": {}, "text": ""}
                put(create.id, roots, made.id)
                return 201, roots["body"]
        return self._no_capacity()

    def _list(self, came: Incoming) -> Reply:
        shape = self.description.list
        rows = [self._market.instance(made) for made in self._market.look()]
        return 200, self._paged(shape.items, shape.paging, rows, came)

    def _get(self, came: Incoming) -> Reply:
        self._market.look()
        made = self._market.made.get(str(came.values.get("instance_id")))
        if made is None:
            return 404, self._failure("not-found", "there is no such instance")
        return 200, place(self.description.get.item, self._market.instance(made))

    def _terminate(self, came: Incoming) -> Reply:
        instance_id = told(self.description.terminate.request, came, "instance_id")
        if self._market.end(str(instance_id)) is None:
            return 404, self._failure("not-found", "there is no such instance")
        return 200, {}

    def _keys(self, _: Incoming) -> Reply:
        assert self.description.ssh_keys is not None
        return 200, place(self.description.ssh_keys.list.items, list(self._ssh_keys.values()))

    def _new_key(self, came: Incoming) -> Reply:
        shape = self.description.ssh_keys
        assert shape is not None
        ref = f"key-{next(self._numbers)}"
        name, public = told(shape.create, came, "name"), told(shape.create, came, "public_key")
        roots: dict[str, Any] = {"item": {}}
        for expression, value in ((shape.ref, ref), (shape.name, name), (shape.public_key, public)):
            put(f"item.{expression}", roots, value)
        self._ssh_keys[ref] = roots["item"]
        answer: dict[str, Any] = {"body": {}, "text": ""}
        put(shape.created, answer, name if shape.use else ref)
        return 201, answer["body"]

    def _drop_key(self, came: Incoming) -> Reply:
        known = self._ssh_keys.pop(str(came.values.get("ref")), None)
        return (200, {}) if known else (404, self._failure("not-found", "there is no such key"))

    @property
    def _clusters(self) -> Any:
        return self.description.clusters

    def _extras_items(self, kind: str) -> str:
        return next(extra.list.items for extra in self.description.extras if extra.kind == kind)

    def _paged(self, items: str, paging: Paging, rows: list[Any], came: Incoming) -> Any:
        start, size = 0, paging.size if paging.style != "none" else len(rows)
        at = came.query.get(paging.parameter, "")
        if paging.style != "none" and at:
            start = (int(at) - paging.first) * (size if paging.style == "page" else 1) if at.isdecimal() else 0
        body = place(items, rows[start : start + size])
        if isinstance(body, dict):
            if paging.total:
                _put_in(body, paging.total, len(rows))
            if paging.next:
                _put_in(body, paging.next, str(start + size) if start + size < len(rows) else None)
        return body

    def _no_capacity(self) -> Reply:
        rules = [r for r in self.description.errors.rules if r.kind == "capacity"]
        rule = rules[0] if rules else None
        status = next(iter(rule.status), 400) if rule else 409
        return status if status < 500 else 409, self._failure("capacity", _phrase(rule), rule)

    def _failure(self, kind: str, message: str, rule: ErrorRule | None = None) -> Any:
        errors = self.description.errors
        rule = rule or next((r for r in errors.rules if r.kind == kind and r.code), None)
        body: dict[str, Any] = {"message": message}
        first = errors.message.split("||")[0].strip()
        _put_in(body, first, message)
        if errors.code and rule and rule.code:
            _put_in(body, errors.code.split("||")[0].strip(), rule.code[0])
        return body


def serve(sandbox: Sandbox, host: str, port: int) -> ThreadingHTTPServer:
    """A server that is not running yet (`serve_forever`).

    Raises:
        UsageError: the address is not one of this machine alone, or is taken.
    """
    if not ip_address(host).is_loopback:
        raise UsageError(f"the sandbox listens on loopback only, not on {host}", hint="--listen 127.0.0.1:8090")
    try:
        return ThreadingHTTPServer((host, port), _handler(sandbox))
    except OSError as error:
        raise UsageError(f"{host}:{port} cannot be listened on: {error.strerror}") from error


def _put_in(body: dict[str, Any], expression: str, value: Any) -> None:
    roots: dict[str, Any] = {"body": body}
    put(f"body.{expression}", roots, value)


def _phrase(rule: ErrorRule | None) -> str:
    if rule is None or rule.text is None:
        return _PHRASES[0]
    return next((p for p in _PHRASES if re.search(rule.text or "", p, re.IGNORECASE)), _PHRASES[0])


def _handler(sandbox: Sandbox) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length") or 0))
            parts = urlsplit(self.path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                body = json.loads(content) if content else None
            except ValueError:
                body = None
            came = Incoming(self.command, parts.path, dict(parse_qsl(parts.query)), headers, body)
            status, answer = sandbox.answer(came)
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _do  # noqa: N815 - names that http.server looks for

        def log_message(self, format: str, *arguments: Any) -> None:
            """Quiet."""

    return Handler
