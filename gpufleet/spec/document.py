"""YAML text -> a tree that remembers lines.

Stricter than YAML: one document, no duplicate keys, no tags, keys are text, bounded depth and size. Scalars stay the
text that was written, because the type of a fleet key decides how it is read; so ``no``, ``12:30``, ``0.30`` and
``1e10`` never turn into something else on the way (YAML 1.1 reads a boolean, a number of seconds, and two floats).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from gpufleet.spec.problems import Loc, Problem, one_line

MAX_DEPTH = 32
MAX_NODES = 100_000
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]{1,3})?")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Scalar:
    """Text as written."""

    line: int
    text: str
    plain: bool
    """Without quotes, so that ``null`` means null."""

    @property
    def is_null(self) -> bool:
        return self.plain and self.text in _NULLS


@dataclass(frozen=True)
class Sequence:
    """A list."""

    line: int
    items: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class Mapping:
    """A section."""

    line: int
    entries: dict[str, Node] = field(default_factory=dict)
    key_lines: dict[str, int] = field(default_factory=dict)


Node = Scalar | Sequence | Mapping


class BadDocument(Exception):
    """The text is no such document. Caught by `gpufleet.spec.load`."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def parse_document(text: str) -> Node | None:
    """The tree of the only document in the text; None when there is none.

    Raises:
        BadDocument: not YAML, or YAML that a fleet file may not use.
    """
    try:
        return _Builder(yaml.parse(text, Loader=_LOADER)).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = one_line(error.problem or error.context or "syntax error")
        raise _bad(f"not YAML: {said}", mark.line + 1 if mark else None) from None
    except yaml.YAMLError as error:
        raise _bad(f"not YAML: {one_line(getattr(error, 'reason', None) or 'unreadable text')}", None) from None


def plain_value(node: Node) -> Any:
    """Dicts, lists and text; an empty value in a section counts as a key left out."""
    if isinstance(node, Scalar):
        return None if node.is_null else node.text
    if isinstance(node, Sequence):
        return [plain_value(item) for item in node.items]
    return {key: plain_value(item) for key, item in node.entries.items() if not _is_empty(item)}


def typed_value(node: Node) -> Any:
    """Like `plain_value`, but with numbers, booleans and null: for sections whose keys gpufleet does not know."""
    if isinstance(node, Scalar):
        return resolve(node.text) if node.plain else node.text
    if isinstance(node, Sequence):
        return [typed_value(item) for item in node.items]
    return {key: typed_value(item) for key, item in node.entries.items()}


def resolve(text: str) -> Any:
    """What a plain scalar means by YAML 1.2's core rules, decimal numbers only."""
    if text in _NULLS:
        return None
    if text in {"true", "True", "TRUE", "false", "False", "FALSE"}:
        return text.lower() == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return text


def line_of(root: Node | None, loc: Loc) -> int | None:
    """The line where this place is written, or the nearest section around it."""
    line = root.line if root is not None else None
    node = root
    for part in loc:
        if isinstance(node, Mapping) and part in node.entries:
            line, node = node.key_lines[str(part)], node.entries[str(part)]
        elif isinstance(node, Sequence) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
            line = node.line
        else:
            break
    return line


def _is_empty(node: Node) -> bool:
    return isinstance(node, Scalar) and node.is_null


class _Builder:
    """Builds the tree from parser events, counting as it goes."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._count = 0

    def document(self) -> Node | None:
        root: Node | None = None
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise _bad("a fleet file holds one YAML document, and a second begins here", _line(event))
            elif isinstance(event, yaml.NodeEvent):
                root = self._node(event, depth=0)
        return None if root is None or _is_empty(root) else root

    def _node(self, event: Any, depth: int) -> Node:
        line = _line(event)
        if depth > MAX_DEPTH:
            raise _bad(f"nested more than {MAX_DEPTH} levels deep", line)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        before = self._count
        self._grow(1, line)
        if event.tag is not None:
            raise _bad(f"YAML tags are not used in a fleet file: {one_line(event.tag)}", line)
        node = self._build(event, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = (node, self._count - before)
        return node

    def _build(self, event: Any, depth: int) -> Node:
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(event, depth)
        return self._mapping(event, depth)

    def _alias(self, event: Any) -> Node:
        if event.anchor not in self._anchors:
            raise _bad(f"'*{one_line(event.anchor)}' names no anchor that was written before it", _line(event))
        node, size = self._anchors[event.anchor]
        self._grow(size, _line(event))
        return node

    def _scalar(self, event: Any) -> Scalar:
        if _CONTROL.search(event.value):
            raise _bad("text with a control character", _line(event))
        return Scalar(_line(event), event.value, plain=event.style in {None, ""})

    def _sequence(self, start: Any, depth: int) -> Sequence:
        node = Sequence(_line(start))
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            node.items.append(self._node(event, depth + 1))
        return node

    def _mapping(self, start: Any, depth: int) -> Mapping:
        node = Mapping(_line(start))
        merged: list[Node] = []
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event, depth)
            value = self._node(next(self._events), depth + 1)
            if key.plain and key.text == "<<":
                merged.append(value)
                continue
            if key.text in node.entries:
                first = node.key_lines[key.text]
                raise _bad(f"'{one_line(key.text)}' is written twice, first on line {first}", key.line)
            node.entries[key.text], node.key_lines[key.text] = value, key.line
        for value in merged:
            _merge(node, value)
        return node

    def _key(self, event: Any, depth: int) -> Scalar:
        key = self._node(event, depth + 1)
        if not isinstance(key, Scalar) or key.is_null:
            raise _bad("a key must be text", _line(event))
        return key

    def _grow(self, by: int, line: int) -> None:
        self._count += by
        if self._count > MAX_NODES:
            raise _bad(f"more than {MAX_NODES:,} values, aliases counted as what they stand for", line)


def _merge(into: Mapping, value: Node) -> None:
    """YAML's ``<<: *anchor``: keys that the section itself lacks."""
    if isinstance(value, Sequence):
        for item in value.items:
            _merge(into, item)
    elif isinstance(value, Mapping):
        for key, node in value.entries.items():
            into.entries.setdefault(key, node)
            into.key_lines.setdefault(key, value.key_lines[key])
    else:
        raise _bad("'<<' merges a section, written as <<: *anchor", into.line)


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _bad(message: str, line: int | None) -> BadDocument:
    return BadDocument(Problem(message, line=line))
