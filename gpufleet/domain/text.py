"""Text that others wrote: nodes, models, providers."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
"""Colours and cursor moves, titles and links: gone as a whole, so that no ``[31m`` is left of them."""
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """The text without what steers a terminal or turns the direction of writing; newlines and tabs stay."""
    return _STEERING.sub("", _SEQUENCE.sub("", text))
