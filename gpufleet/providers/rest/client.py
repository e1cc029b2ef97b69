"""One HTTP attempt: signed, never redirected, never repeated, and told in our own words when it fails.

No secret stands in a message or in a request that is kept: messages name the method, the path and the provider only.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from ipaddress import ip_address
from typing import Any, NoReturn
from urllib.parse import urlsplit

import httpx

from gpufleet import __version__
from gpufleet.errors import InvalidFleet
from gpufleet.providers import errors
from gpufleet.providers.rest.description import Auth, ErrorMap, Request
from gpufleet.providers.rest.expressions import BadExpression, evaluate, fill, fill_path
from gpufleet.providers.rest.failures import CREATES, understand
from gpufleet.providers.rest.pacing import Pacer

_LONGEST_ANSWER = 64 * 1024 * 1024
_TOKEN_MARGIN = 30.0
_CONNECT_SECONDS = 10.0
Values = Mapping[str, Any]
Secret = Callable[[], str]


@dataclass(frozen=True)
class Credentials:
    """Where the secrets come from; each is read when it is first needed."""

    key: Secret
    client_id: Secret | None = None


@dataclass(frozen=True)
class Reply:
    """A 2xx answer."""

    body: Any
    """Parsed JSON, numbers with a fraction as Decimal; None where there is none."""
    text: str


class Client:
    """Talks to one provider. Safe to use from many threads."""

    def __init__(
        self,
        provider: str,
        base_url: str,
        *,
        auth: Auth,
        credentials: Credentials,
        rules: ErrorMap,
        pacer: Pacer,
        timeout_seconds: float = 30.0,
    ) -> None:
        self._provider = provider
        self._base_url = check_base_url(base_url, provider=provider)
        self._auth = auth
        self._credentials = credentials
        self._rules = rules
        self._pacer = pacer
        self._token: tuple[str, float] | None = None
        self._lock = threading.Lock()
        timeout = httpx.Timeout(timeout_seconds, connect=min(_CONNECT_SECONDS, timeout_seconds))
        self._http = httpx.Client(
            timeout=timeout,
            follow_redirects=False,
            trust_env=True,
            headers={"user-agent": f"gpufleet/{__version__}", "accept": "application/json"},
        )

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def call(self, operation: str, request: Request, values: Values, *, ids: str | None = None) -> Reply:
        """Make one request and read the answer.

        Args:
            operation: its name in the description; creates are paced by whoever makes them.
            ids: an expression that finds ids in a failed answer.

        Raises:
            ProviderRefused: of the kind that the error map says. After a create has left, anything unclear is
                AmbiguousOutcome.
        """
        if operation not in CREATES:
            time.sleep(self._pacer.take_turn(operation))
        response = self._send(operation, request, values)
        if response.status_code == 401 and self._auth.type == "oauth2" and self._forget_token():
            response = self._send(operation, request, values)
        return self._read(operation, request, response, ids)

    def _send(self, operation: str, request: Request, values: Values) -> httpx.Response:
        prepared = self._prepare(request, values)
        try:
            return self._http.send(prepared)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol) as error:
            why = f"{self._named(request)} could not connect: {_reason(error)}"
            raise errors.NotSent(why) if operation in CREATES else errors.Transient(why) from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            why = f"{self._named(request)} was sent and not answered: {_reason(error)}"
            raise errors.AmbiguousOutcome(why) if operation in CREATES else errors.Transient(why) from None

    def _prepare(self, request: Request, values: Values) -> httpx.Request:
        try:
            path = fill_path(request.path, values)
            query = {name: _text(value) for name, value in fill(request.query, values).items()}
            body = fill(request.body, values)
        except BadExpression as error:
            raise errors.InvalidRequest(f"{self._named(request)} cannot be written: {error}") from None
        headers = dict(self._signature(query))
        content = None
        if body is not None:
            content = json.dumps(body, default=_plain).encode()
            headers["content-type"] = "application/json"
        return self._http.build_request(
            request.method, self._base_url + path, params=query, headers=headers, content=content
        )

    def _signature(self, query: dict[str, str]) -> Mapping[str, str]:
        match self._auth.type:
            case "query":
                query[self._auth.name] = self._credentials.key()
                return {}
            case "header":
                return {self._auth.name: self._auth.prefix + self._credentials.key()}
            case "bearer":
                return {"Authorization": f"Bearer {self._credentials.key()}"}
            case "oauth2":
                return {"Authorization": f"Bearer {self._access_token()}"}

    def _access_token(self) -> str:
        with self._lock:
            if self._token is None or self._token[1] < time.monotonic():
                self._token = self._new_token()
            return self._token[0]

    def _forget_token(self) -> bool:
        """Whether there was one that the provider may have revoked."""
        with self._lock:
            known, self._token = self._token, None
            return known is not None

    def _new_token(self) -> tuple[str, float]:
        request = Request(method="POST", path=self._auth.token_path)
        if self._credentials.client_id is None:
            raise InvalidFleet(f"provider {self._provider} needs client_id", where=f"provider {self._provider}")
        secrets = {
            "grant_type": "client_credentials",
            "client_id": self._credentials.client_id(),
            "client_secret": self._credentials.key(),
        }
        try:
            response = self._http.post(self._base_url + request.path, json=secrets)
        except (httpx.HTTPError, httpx.StreamError) as error:
            # The call itself has not left yet, whatever it is.
            raise errors.NotSent(f"{self._named(request)} was not answered: {_reason(error)}") from None
        body = self._read("token", request, response, None).body
        token = body.get("access_token") if isinstance(body, dict) else None
        if not isinstance(token, str) or not token:
            raise errors.ProtocolError(f"{self._named(request)} gave no access token")
        lifetime = body.get("expires_in")
        seconds = float(lifetime) if isinstance(lifetime, int | Decimal) else 300.0
        return token, time.monotonic() + max(0.0, seconds - _TOKEN_MARGIN)

    def _read(self, operation: str, request: Request, response: httpx.Response, ids: str | None) -> Reply:
        if response.is_redirect or response.is_informational:
            self._unreadable(operation, f"{self._named(request)} was redirected, which is not followed")
        text = response.text if len(response.content) <= _LONGEST_ANSWER else ""
        body = _parsed(text)
        if response.is_success and not self._failed(body):
            if body is _NO_JSON and text and not _is_plain(text):
                self._unreadable(operation, f"{self._named(request)} answered with something that is not JSON")
            return Reply(None if body is _NO_JSON else body, text.strip())
        known = None if body is _NO_JSON else body
        failure = understand(
            self._rules, operation, status=response.status_code, body=known, text=text, headers=response.headers
        )
        if failure.kind == "rate-limit":
            self._pacer.hold_back(operation, failure.retry_after or 0.0)
        named = _ids(ids, known, text)
        told = replace(failure, message=f"{self._provider}: {failure.message}", ids=named)
        raise told.error(operation)

    def _failed(self, body: Any) -> bool:
        if self._rules.failed is None or body is _NO_JSON:
            return False
        try:
            return bool(evaluate(self._rules.failed, body))
        except BadExpression:
            return False

    def _unreadable(self, operation: str, why: str) -> NoReturn:
        raise errors.AmbiguousOutcome(why) if operation in CREATES else errors.ProtocolError(why)

    def _named(self, request: Request) -> str:
        return f"{self._provider}: {request.method} {request.path}"


def check_base_url(url: str, *, provider: str) -> str:
    """A base URL without its last slash.

    Raises:
        InvalidFleet: it is no https URL (http is for this machine alone), or holds credentials or a query.
    """
    parts = urlsplit(url)
    plain = parts.scheme == "http" and _is_loopback(parts.hostname or "")
    if not parts.hostname or (parts.scheme != "https" and not plain):
        raise InvalidFleet(
            f"base_url of provider {provider} must begin with https:// (a key travels with every call)",
            where=f"provider {provider}",
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidFleet(
            f"base_url of provider {provider} must not hold credentials or a query", where=f"provider {provider}"
        )
    return url.rstrip("/")


_NO_JSON = object()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_float=Decimal)
    except ValueError:
        return _NO_JSON


def _is_plain(text: str) -> bool:
    """One word, as an id; a page of HTML or a message is not."""
    return len(text.split()) == 1 and "<" not in text


def _ids(expression: str | None, body: Any, text: str) -> tuple[str, ...]:
    if expression is None:
        return ()
    try:
        found = evaluate(expression, {"body": body, "text": text})
    except BadExpression:
        return ()
    values = found if isinstance(found, list) else [found]
    return tuple(str(value) for value in values if value not in {None, ""})


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(_text, value)) if isinstance(value, list) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    raise TypeError(f"a {type(value).__name__} cannot be sent")


def _reason(error: Exception) -> str:
    """The kind of trouble alone: an exception's own text may quote an address with a key in it."""
    return type(error).__name__
