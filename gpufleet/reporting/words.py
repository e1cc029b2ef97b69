"""Small texts that every table and line shares."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import groupby

from gpufleet.domain.nodes import NodeName


def duration(seconds: float | None) -> str:
    """``42 s``, ``3 min 20 s``, ``2 h 40 min``, ``3 d 4 h``; ``?`` when unknown. Rounded, never negative."""
    if seconds is None:
        return "?"
    whole = max(0, round(seconds))
    for unit, size, below, smaller in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{whole} s"


def since(start: datetime | None, now: datetime) -> str:
    """How long ago ``start`` was, as `duration`."""
    return duration(None if start is None else (now - start).total_seconds())


def moment(at: datetime | None) -> str:
    """``11-30 21:47`` in UTC, or ``?``."""
    return "?" if at is None else at.astimezone(UTC).strftime("%m-%d %H:%M")


def count(number: int, noun: str) -> str:
    """``1 node``, ``3 nodes``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def named(nodes: Iterable[NodeName]) -> str:
    """``decode/0-3, decode/7, prefill/0``: nodes by pool, neighbours together."""
    told = []
    for (pool, _), run in groupby(
        enumerate(sorted(set(nodes))), key=lambda item: (item[1].pool, item[1].index - item[0])
    ):
        indices = [node.index for _, node in run]
        told.append(f"{pool}/{indices[0]}" + (f"-{indices[-1]}" if len(indices) > 1 else ""))
    return ", ".join(told)


def plain(text: str) -> str:
    """Text from outside (a provider, a node) on one line and without terminal control sequences."""
    return "".join(" " if unicodedata.category(char) == "Cc" else char for char in text).strip()
