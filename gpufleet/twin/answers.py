"""The twin's model: a vocabulary that needs no file, a chat template, and deterministic answers.

A token is a short piece of text and its id is that text, so any stand-in turns ids into text without sharing state.
The answer repeats the question, so a reply that belongs to another caller shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

_SPECIALS = ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>")
_SPECIAL_BASE = 1 << 48
_TOKEN_BYTES = 6
_UNIT = re.compile("(" + "|".join(re.escape(s) for s in _SPECIALS) + r")|[ ]?[^\s<\[]+|[ ]?[<\[]|\s")
_COUNT = re.compile(r"\bcount (?:from 1 )?to (\d{1,6})\b", re.IGNORECASE)
QUESTION_LIMIT = 4096
"""Characters of a question that the answer repeats at most."""


def encode(text: str) -> list[int]:
    """Token ids of ``text``: about one per word."""
    ids: list[int] = []
    for unit in _UNIT.finditer(text.replace("\x00", "\ufffd")):
        if unit.group(1):
            ids.append(_SPECIAL_BASE + _SPECIALS.index(unit.group(1)))
        else:
            ids.extend(_pieces(unit.group()))
    return ids


def _pieces(unit: str) -> Iterable[int]:
    piece = b""
    for char in unit:
        data = char.encode("utf-8", "replace")
        if len(piece) + len(data) > _TOKEN_BYTES:
            yield int.from_bytes(piece)
            piece = b""
        piece += data
    yield int.from_bytes(piece)


def decode(ids: Sequence[int]) -> str:
    """The text of ``ids``; an id that is none of ours becomes U+FFFD."""
    return "".join(_text_of(token) for token in ids)


def _text_of(token: int) -> str:
    special = token - _SPECIAL_BASE
    if 0 <= special < len(_SPECIALS):
        return _SPECIALS[special]
    if not 0 < token < _SPECIAL_BASE:
        return "\ufffd"
    return token.to_bytes((token.bit_length() + 7) // 8).decode("utf-8", "replace")


def render(messages: Sequence[dict[str, Any]]) -> str:
    """The chat template: what a chat request becomes before it is tokenised."""
    turns = "".join(f"<|{_role(m)}|>\n{content_text(m.get('content'))}" for m in messages)
    return f"[gMASK]<sop>{turns}<|assistant|>\n"


def _role(message: dict[str, Any]) -> str:
    role = str(message.get("role", "user"))
    return role if f"<|{role}|>" in _SPECIALS else "system"


def content_text(content: object) -> str:
    """The text of a message: a string, or the text parts of a list."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def question_of(prompt: str) -> str:
    """What was asked: the last user turn, or a plain prompt as it is."""
    _, marker, last = prompt.rpartition("<|user|>\n")
    text = last.split("<|assistant|>", 1)[0] if marker else prompt
    return text.strip()[:QUESTION_LIMIT]


def answer_to(question: str) -> str:
    """``count to 3`` gives ``1 2 3``, anything else is repeated."""
    count = _COUNT.search(question)
    if count:
        return " ".join(str(number) for number in range(1, int(count.group(1)) + 1))
    return f"You said: {question}" if question else "You said nothing."


class Answer(NamedTuple):
    """Tokens of one reply and why it ends there: ``stop`` or ``length``."""

    tokens: list[int]
    finish_reason: str


def answer_tokens(question: str, max_tokens: int, *, ignore_eos: bool = False) -> Answer:
    """The reply to ``question`` within ``max_tokens``; with ``ignore_eos`` it starts over until they are used up."""
    tokens = encode(answer_to(question))
    if ignore_eos:
        tokens = tokens * (max_tokens // len(tokens) + 1)
    ended = len(tokens) < max_tokens
    return Answer(tokens[:max_tokens], "stop" if ended else "length")


def stopped(answer: Answer, stop: Sequence[str]) -> Answer:
    """``answer`` up to the first of the stop strings."""
    text = decode(answer.tokens)
    ends = [at for at in (text.find(word) for word in stop if word) if at >= 0]
    return Answer(encode(text[: min(ends)]), "stop") if ends else answer
