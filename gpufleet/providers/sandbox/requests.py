"""Incoming requests told apart by the description, and read by its templates turned around."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from gpufleet.providers.rest.description import Description, Request
from gpufleet.providers.rest.expressions import BadExpression, evaluate

_PLACE = re.compile(r"\{([a-z_.]+)\}")


@dataclass(frozen=True)
class Incoming:
    """One request as it arrived."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any
    values: Mapping[str, str] = field(default_factory=dict)
    """What the path's placeholders matched."""


def operations(description: Description) -> Iterator[tuple[str, Request]]:
    """Every operation of a description and its request."""
    if description.auth.type == "oauth2":
        yield "token", Request(method="POST", path=description.auth.token_path)
    if description.whoami:
        yield "whoami", description.whoami.request
    yield "offers", description.offers.request
    for name, request in description.offers.also.items():
        yield f"also:{name}", request
    yield "create", description.create.request
    yield "terminate", description.terminate.request
    yield "list", description.list.request
    if keys := description.ssh_keys:
        yield "ssh_keys", keys.list.request
        yield "create_ssh_key", keys.create
        if keys.delete:
            yield "delete_ssh_key", keys.delete
    for extra in description.extras:
        yield f"extras:{extra.kind}", extra.list.request
    if clusters := description.clusters:
        yield "clusters", clusters.list.request
        if clusters.offers:
            yield "cluster_offers", clusters.offers.request
            for name, request in clusters.offers.also.items():
                yield f"cluster_also:{name}", request
    yield "get", description.get.request


def matched(request: Request, came: Incoming) -> Incoming | None:
    """The request with what its path says, or None when it is another operation's."""
    if request.method != came.method:
        return None
    names = _PLACE.findall(request.path)
    found = re.fullmatch(_PLACE.sub("([^/]+)", request.path), came.path)
    literal = {k: v for k, v in request.query.items() if not (isinstance(v, str) and v.startswith("="))}
    if found is None or any(came.query.get(name) != str(value) for name, value in literal.items()):
        return None
    values = dict(zip(names, map(unquote, found.groups()), strict=True))
    return Incoming(came.method, came.path, came.query, came.headers, came.body, values)


def told(request: Request, came: Incoming, expression: str) -> Any:
    """What the request says for ``=expression``: in its path, its body or its query."""
    if expression in came.values:
        return came.values[expression]
    for path, leaf in _leaves(request.body):
        if leaf == f"={expression}":
            return _dig(came.body, path)
    for name, leaf in request.query.items():
        if leaf == f"={expression}":
            return came.query.get(name)
    return None


def unknown_field(request: Request, came: Incoming) -> str | None:
    """A field of the body that the description's template has not."""
    if not isinstance(request.body, dict) or not isinstance(came.body, dict):
        return None
    return next((name for name in came.body if name not in request.body), None)


def speaks_of(request: Request, came: Incoming, values: Mapping[str, Any]) -> bool:
    """Whether every part of the request that depends on the offer alone says what ``values`` would make it say."""
    for name, said in came.values.items():
        if name.startswith("offer.") and str(_value(name, values)) != said:
            return False
    for path, leaf in _leaves(request.body):
        if isinstance(leaf, str) and leaf.startswith("=offer.") and _value(leaf[1:], values) != _dig(came.body, path):
            return False
    return True


def _value(expression: str, values: Mapping[str, Any]) -> Any:
    try:
        return evaluate(expression, values)
    except BadExpression:
        return None


def _leaves(template: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if isinstance(template, dict):
        for name, value in template.items():
            yield from _leaves(value, (*path, name))
    elif isinstance(template, list):
        for position, value in enumerate(template):
            yield from _leaves(value, (*path, position))
    else:
        yield path, template


def _dig(body: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        try:
            body = body[step]
        except (KeyError, IndexError, TypeError):
            return None
    return body
