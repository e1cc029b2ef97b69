"""The part of Go's templates that ``--format`` is used with.

Fields, ``index``, ``json``, ``len``, ``join``, ``range`` without variables, ``if``, ``else`` and ``end``.
"""

from __future__ import annotations

import json
import re

from gpufleet.twin.docker.errors import DockerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FREE_KEYS = ("Labels", "Volumes")
"""Maps, not structs: a missing key is no error there."""


def render(text: str, data: Any, functions: dict[str, Callable[[str], str]] | None = None) -> str:
    """Fill a template in.

    Args:
        text: the template; ``\\t`` and ``\\n`` may be written out.
        data: what ``.`` is.
        functions: methods of ``.`` with one argument, such as ``.Label "x"``.

    Raises:
        DockerError: bad syntax, or a field that is not there.
    """
    parts = re.split(r"\{\{-?\s*(.*?)\s*-?\}\}", text.replace("\\t", "\t").replace("\\n", "\n"))
    if "{{" in "".join(parts[::2]):
        raise DockerError("template parsing error: template: :1: unclosed action", 64)
    output, end = _block(parts, 0, data, functions or {})
    if end < len(parts):
        raise DockerError(f"template parsing error: template: :1: unexpected {{{{{parts[end]}}}}}", 64)
    return output


def _block(parts: list[str], at: int, data: Any, functions: dict[str, Callable[[str], str]]) -> tuple[str, int]:
    """Render until ``end`` or ``else``; returns the text and the place of that word."""
    output = ""
    while at < len(parts):
        if at % 2 == 0:
            output += parts[at]
            at += 1
        elif parts[at] in ("end", "else"):
            return output, at
        elif parts[at].startswith(("if ", "range ")):
            text, at = _branch(parts, at, data, functions)
            output += text
        else:
            output += _show(_evaluate(parts[at], data, functions))
            at += 1
    return output, at


def _branch(parts: list[str], at: int, data: Any, functions: dict[str, Callable[[str], str]]) -> tuple[str, int]:
    word, _, expression = parts[at].partition(" ")
    value = _evaluate(expression, data, functions)
    if word == "range":
        items = list(value.values()) if isinstance(value, dict) else list(value or [])
    else:
        items = [data] if value else []
    body, end = _block(parts, at + 1, data if word == "if" else (items[0] if items else _Nothing()), functions)
    text = "".join(_block(parts, at + 1, item, functions)[0] for item in items)
    if end < len(parts) and parts[end] == "else":
        body, end = _block(parts, end + 1, data, functions)
        text = text if items else body
    if end >= len(parts):
        raise DockerError("template parsing error: template: :1: unexpected EOF", 64)
    return text, end + 1


class _Nothing(dict):  # type: ignore[type-arg]
    """Stands for an item when a range is empty: any field of it is nothing."""

    def __missing__(self, key: str) -> _Nothing:
        return self


def _evaluate(expression: str, data: Any, functions: dict[str, Callable[[str], str]]) -> Any:  # noqa: PLR0911
    words = re.findall(r'"(?:[^"\\]|\\.)*"|\([^()]*\)|\S+', expression)
    head, rest = words[0], words[1:]
    if head.startswith(".") and rest and head[1:] in functions:
        return functions[head[1:]](json.loads(rest[0]))
    values = [_evaluate(word[1:-1], data, functions) if word.startswith("(") else _atom(word, data) for word in rest]
    if head == "json":
        return json.dumps(values[0], separators=(",", ":"))
    if head == "len":
        return len(values[0] or ())
    if head == "join":
        return values[1].join(values[0] or ())
    if head in ("println", "print"):
        return " ".join(_show(value) for value in values) + ("\n" if head == "println" else "")
    if head == "index":
        return _index(values)
    if head.startswith("(") and not rest:
        return _evaluate(head[1:-1], data, functions)
    if rest or not head.startswith("."):
        raise DockerError(f'template parsing error: template: :1: function "{head}" not defined', 64)
    return _atom(head, data)


def _index(values: list[Any]) -> Any:
    value = values[0]
    for key in values[1:]:
        if isinstance(key, int) and (not isinstance(value, list) or key >= len(value)):
            raise DockerError(
                f'template: :1:2: executing "" at <index>: error calling index: index out of range: {key}'
            )
        value = value[key] if isinstance(key, int) else (value or {}).get(key, "")
    return value


def _atom(word: str, data: Any) -> Any:
    if word.startswith('"'):
        return json.loads(word)
    if word.lstrip("-").isdecimal():
        return int(word)
    if not word.startswith("."):
        raise DockerError(f'template parsing error: template: :1: function "{word}" not defined', 64)
    value, free = data, False
    for field in filter(None, word.split(".")):
        if isinstance(value, dict) and (field in value or isinstance(value, _Nothing)):
            value = value[field]
        elif free:
            return None
        else:
            raise DockerError(f'template: :1:2: executing "" at <{word}>: map has no entry for key "{field}"')
        free = field in FREE_KEYS
    return value


def _show(value: Any) -> str:
    if value is None or isinstance(value, _Nothing):
        return "<no value>"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{' '.join(_show(item) for item in value)}]"
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{_show(item)}' for key, item in sorted(value.items()))}]"
    return str(value)
