"""Put values where an expression would find them. Turns around what provider files use; the rest is left alone."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from typing import Any

from gpufleet.providers.rest.expressions import compiled, number

Node = dict[str, Any]
_THROUGH = {"gpu_model", "number", "to_string", "lower", "to_number"}
_ROOTS = ("item", "each", "also", "body")


def put(expression: str, roots: dict[str, Any], value: Any) -> None:
    """Change ``roots`` so that the expression gives ``value``, as far as it can be turned around."""
    _put(_parsed(expression), roots, value)


def place(expression: str, value: Any) -> Any:
    """A body in which the expression finds ``value``; ``@`` is the value itself."""
    node = _parsed(expression)
    if node["type"] == "or_expression":
        node = node["children"][0]
    if node["type"] == "current":
        return value
    if node["type"] == "function_expression" and node["value"] == "values":
        rows = {f"{number}": row for number, row in enumerate(value)}
        return _wrapped(node["children"][0], rows)
    return _wrapped(node, value)


def uses_parts_of(expression: str, root: str) -> bool:
    """Whether it looks inside ``root`` (``each.id``), rather than taking it whole."""
    return any(path[0] == root and len(path) > 1 for path in _paths(_parsed(expression)))


def set_unset(expression: str, roots: dict[str, Any], value: Any) -> None:
    """Give every path of the expression that has no value yet this one."""
    for path in _paths(_parsed(expression)):
        if path[0] in _ROOTS and len(path) > 1 and _get(roots, path) is None:
            _set(roots, path, value)


def _parsed(expression: str) -> Node:
    tree: Node = dict(compiled(expression).parsed)
    return tree


def _wrapped(node: Node, value: Any) -> Any:
    body: dict[str, Any] = {}
    path = _path(node)
    if path:
        _set(body, path, value)
    return body


def _put(node: Node, roots: dict[str, Any], value: Any) -> None:
    children = node["children"]
    match node["type"]:
        case "or_expression":
            _put(children[0], roots, value)
        case "and_expression":
            for child in children[:-1]:
                _put(child, roots, "1")
            _put(children[-1], roots, value)
        case "function_expression":
            _put_function(node["value"], children, roots, value)
        case "subexpression" if children[0].get("value") == "lookup":
            row = _looked_up(children[0]["children"], roots)
            if row is not None:
                _set(row, [step for child in children[1:] for step in _path(child) or []], value)
        case _:
            if path := _path(node):
                _set(roots, path, value)


def _put_function(name: str, arguments: list[Node], roots: dict[str, Any], value: Any) -> None:
    if name in _THROUGH:
        _put(arguments[0], roots, value)
    elif name == "when":
        _put(arguments[1], roots, value)
        _put(arguments[2], roots, value)
    elif name in {"times", "divide"}:
        _put_scaled(name, arguments, roots, value)
    elif name == "login":
        _put(arguments[0], roots, "root@203.0.113.7 -p 22")


def _put_scaled(name: str, arguments: list[Node], roots: dict[str, Any], value: Any) -> None:
    factor, amount = number(_constant(arguments[1], roots)), number(value)
    if factor and amount is not None:
        _put(arguments[0], roots, _plain(amount / factor if name == "times" else amount * factor))


def _constant(node: Node, roots: dict[str, Any]) -> Any:
    if node["type"] == "literal":
        return node["value"]
    path = _path(node)
    return _get(roots, path) if path else None


def _looked_up(arguments: list[Node], roots: dict[str, Any]) -> dict[str, Any] | None:
    """The row that ``lookup(rows, key, value)`` finds, made when it is not there."""
    where, key = _path(arguments[0]), arguments[1]["value"]
    wanted = _constant(arguments[2], roots)
    if not where or wanted is None:
        return None
    rows = _get(roots, where)
    if not isinstance(rows, list):
        rows = []
        _set(roots, where, rows)
    for row in rows:
        if row.get(key) == wanted:
            found: dict[str, Any] = row
            return found
    rows.append({key: wanted})
    made: dict[str, Any] = rows[-1]
    return made


def _path(node: Node) -> list[str | int] | None:
    match node["type"]:
        case "field":
            return [node["value"]]
        case "index":
            return [node["value"]]
        case "subexpression" | "index_expression":
            parts = [_path(child) for child in node["children"]]
            return None if None in parts else [step for part in parts for step in part or []]
    return None


def _paths(node: Node) -> Iterator[list[str | int]]:
    path = _path(node)
    if path:
        yield path
        return
    for child in node["children"]:
        if isinstance(child, dict):
            yield from _paths(child)


def _get(root: Any, path: list[str | int]) -> Any:
    for step in path:
        try:
            root = root[step]
        except (KeyError, IndexError, TypeError):
            return None
    return root


def _set(root: Any, path: list[str | int], value: Any) -> None:
    for step, following in pairwise(path):
        root = _step_into(root, step, [] if isinstance(following, int) else {})
    _step_into(root, path[-1], value, replace=True)


def _step_into(root: Any, step: str | int, value: Any, *, replace: bool = False) -> Any:
    if isinstance(step, int):
        while len(root) <= step:
            root.append(None)
        if replace or root[step] is None:
            root[step] = value
    elif replace or root.get(step) is None:
        root[step] = value
    return root[step]


def _plain(amount: Decimal) -> float:
    return float(amount)
