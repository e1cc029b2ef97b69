"""JMESPath both ways: what an answer means, and what a request holds.

Standard JMESPath (https://jmespath.org), and the functions of `_Functions`. Numbers of answers are Decimal.
"""

from __future__ import annotations

import re
import shlex
from base64 import b64encode
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any
from urllib.parse import quote

import jmespath
from jmespath import functions
from jmespath.exceptions import JMESPathError
from jmespath.parser import ParsedResult

from gpufleet.catalog.facts import gpus

_LOGIN = re.compile(r"(?:ssh\s+)?(?:(?P<user>[^@\s]+)@)?(?P<host>[^\s:]+)(?:\s+-p\s*(?P<port>\d+)|:(?P<port2>\d+))?")
_PLACEHOLDER = re.compile(r"\{([a-z_.]+)\}")


class BadExpression(ValueError):
    """An expression that cannot be read, or that met a value it cannot work on."""


class _Functions(functions.Functions):
    """What the answers of real providers need beside standard JMESPath. None passes through as null."""

    @functions.signature({"types": []})
    def _func_gpu_model(self, text: Any) -> str | None:
        """``NVIDIA B200``, ``gpu_8x_b200_sxm6``, ``8x B200 SXM6 180GB`` -> ``B200``; null for a GPU nobody knows."""
        return gpu_model(text) if isinstance(text, str) else None

    @functions.signature({"types": []})
    def _func_number(self, value: Any) -> Decimal | None:
        return number(value)

    @functions.signature({"types": []}, {"types": []}, {"types": []})
    def _func_lookup(self, rows: Any, key: Any, value: Any) -> Any:
        """The first of ``rows`` whose ``key`` is ``value``: joins a second answer to the first."""
        if not isinstance(rows, list):
            return None
        return next((row for row in rows if isinstance(row, dict) and row.get(key) == value), None)

    @functions.signature({"types": []}, {"types": []})
    def _func_match(self, pattern: Any, text: Any) -> str | None:
        """The first group of a regular expression (all of it, where there is none), or null."""
        found = re.search(pattern, text) if isinstance(text, str) else None
        return None if found is None else found[found.re.groups and 1]

    @functions.signature({"types": []}, {"types": []})
    def _func_split(self, text: Any, separator: Any) -> list[str] | None:
        return text.split(separator) if isinstance(text, str) else None

    @functions.signature({"types": []})
    def _func_lower(self, text: Any) -> str | None:
        return text.lower() if isinstance(text, str) else None

    @functions.signature({"types": []}, {"types": []}, {"types": []})
    def _func_when(self, condition: Any, yes: Any, no: Any) -> Any:
        return yes if condition else no

    @functions.signature({"types": []}, {"types": []})
    def _func_login(self, text: Any, part: Any) -> Any:
        """``host``, ``port`` or ``user`` of ``root@203.0.113.7 -p 1234`` (or of the first such text of a list)."""
        return login(text, part)

    @functions.signature({"types": []}, {"types": []})
    def _func_times(self, one: Any, other: Any) -> Decimal | None:
        a, b = number(one), number(other)
        return None if a is None or b is None else a * b

    @functions.signature({"types": []}, {"types": []})
    def _func_divide(self, one: Any, other: Any) -> Decimal | None:
        a, b = number(one), number(other)
        return None if a is None or not b else a / b

    @functions.signature({"types": []}, {"types": []})
    def _func_each_with(self, rows: Any, more: Any) -> list[Any] | None:
        """Each row with further keys, and ``rank``, its place: what a cluster says once for all of its members."""
        if not isinstance(rows, list) or not isinstance(more, dict):
            return None
        return [{**row, "rank": rank, **more} for rank, row in enumerate(rows) if isinstance(row, dict)]

    @functions.signature({"types": []})
    def _func_b64(self, text: Any) -> str | None:
        return b64encode(text.encode()).decode() if isinstance(text, str) else None

    @functions.signature({"types": []})
    def _func_shell(self, text: Any) -> str | None:
        """The command that runs a text as a POSIX script: ``sh -c '...'``."""
        return shlex.join(["sh", "-c", text]) if isinstance(text, str) else None

    @functions.signature({"types": []}, {"types": []})
    def _func_plus(self, one: Any, other: Any) -> Decimal | None:
        a, b = number(one), number(other)
        return None if a is None or b is None else a + b


def gpu_model(text: str) -> str | None:
    """The catalog's name of the GPU that a provider's text names."""
    words = re.sub(r"[^A-Z0-9]+", " ", text.upper())
    found = [name for name in gpus() if re.search(rf"(?<![A-Z0-9])(?:\d+X ?)?{name}(?![A-Z0-9])", words)]
    return max(found, key=len, default=None)


def number(value: Any) -> Decimal | None:
    """A finite number from JSON or from text; anything else (true and false too) is None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return None
    try:
        result = Decimal(str(value).strip())
    except InvalidOperation:
        return None
    return result if result.is_finite() else None


def login(text: Any, part: str) -> Any:
    """One part of an SSH command line or ``host:port``."""
    if isinstance(text, list):
        text = next((item for item in text if item), None)
    found = _LOGIN.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        return None
    if part == "port":
        port = found["port"] or found["port2"]
        return int(port) if port else None
    return found[part]


_OPTIONS = jmespath.Options(custom_functions=_Functions())


@cache
def compiled(expression: str) -> ParsedResult:
    """Parse an expression.

    Raises:
        BadExpression: it is none.
    """
    try:
        return jmespath.compile(expression)
    except JMESPathError as error:
        raise BadExpression(f"'{expression}' is not JMESPath: {' '.join(str(error).split())}") from None


def evaluate(expression: str, values: Any) -> Any:
    """What an expression says of ``values``; null is None.

    Raises:
        BadExpression: a function met a value that it does not take.
    """
    try:
        return compiled(expression).search(values, options=_OPTIONS)
    except JMESPathError as error:
        raise BadExpression(f"'{expression}': {' '.join(str(error).split())}") from None


def fill(template: Any, values: Mapping[str, Any]) -> Any:
    """A request's part: text that begins with ``=`` is an expression, everything else stands for itself.

    What is null is left out of objects, since "not set" is what the providers mean by it.
    """
    if isinstance(template, str):
        return evaluate(template[1:], values) if template.startswith("=") else template
    if isinstance(template, Mapping):
        filled = {key: fill(value, values) for key, value in template.items()}
        return {key: value for key, value in filled.items() if value is not None}
    if isinstance(template, list | tuple):
        return [item for item in (fill(part, values) for part in template) if item is not None]
    return template


def fill_path(path: str, values: Mapping[str, Any]) -> str:
    """``/pods/{instance_id}`` with its values, percent-encoded so that none can reach another path.

    Raises:
        BadExpression: a value is missing, or would leave the path (``..``).
    """

    def put(found: re.Match[str]) -> str:
        value = evaluate(found[1], values)
        if value is None or str(value) in {"", ".", ".."}:
            raise BadExpression(f"{found[0]} of the path {path} has no value")
        return quote(str(value), safe="")

    return _PLACEHOLDER.sub(put, path)


def expressions_in(template: Any) -> list[str]:
    """Every expression of a template."""
    if isinstance(template, str):
        return [template[1:]] if template.startswith("=") else []
    if isinstance(template, Mapping):
        return [found for value in template.values() for found in expressions_in(value)]
    if isinstance(template, list | tuple):
        return [found for value in template for found in expressions_in(value)]
    return []
