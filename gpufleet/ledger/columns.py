"""How values are kept in columns: exact, readable with any SQL shell, and checked on the way in and out."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, TypeVar

from sqlalchemy import Dialect, String, Text
from sqlalchemy.types import TypeDecorator

from gpufleet.domain.market import GpuShape
from gpufleet.domain.nodes import NodeName
from gpufleet.errors import UsageError
from gpufleet.ledger.errors import BadValue, LedgerUnreadable

T = TypeVar("T")


def is_money(amount: Decimal) -> bool:
    """A finite amount of at least zero."""
    return amount.is_finite() and amount >= 0


class _Column(TypeDecorator[T]):
    """A column type given by one function each way; None passes through."""

    impl = Text
    cache_ok = True

    def write(self, value: T) -> str:
        raise NotImplementedError

    def read(self, text: str) -> T:
        raise NotImplementedError

    def process_bind_param(self, value: T | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else self.write(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> T | None:  # noqa: ARG002
        return None if value is None else _read(self.read, value)


def _read(convert: Callable[[str], T], text: str) -> T:
    try:
        return convert(text)
    except (ValueError, InvalidOperation, UsageError) as error:
        raise LedgerUnreadable(
            f"the ledger holds {text[:60]!r}, which gpufleet never writes",
            hint="restore the ledger from a copy; until then look at the provider's console for running nodes",
        ) from error


class UtcTime(_Column[datetime]):
    """An aware time as UTC ISO text of fixed width, so that it also sorts as text."""

    cache_ok = True

    def write(self, value: datetime) -> str:
        if value.tzinfo is None:
            raise BadValue(f"the time {value.isoformat()} has no time zone; the ledger keeps UTC only")
        return value.astimezone(UTC).isoformat(timespec="microseconds")

    def read(self, text: str) -> datetime:
        return datetime.fromisoformat(text)


class Usd(_Column[Decimal]):
    """USD as decimal text: exact in every database."""

    cache_ok = True

    def write(self, value: Decimal) -> str:
        if not is_money(value):
            raise BadValue(f"{value} is not an amount of money")
        return str(value)

    def read(self, text: str) -> Decimal:
        return Decimal(text)


class Json(_Column[Any]):
    """Plain JSON with sorted keys."""

    cache_ok = True

    def write(self, value: Any) -> str:
        return json.dumps(value, sort_keys=True, ensure_ascii=True)

    def read(self, text: str) -> Any:
        return json.loads(text)


class Node(_Column[NodeName]):
    """``decode/0``."""

    cache_ok = True

    def write(self, value: NodeName) -> str:
        return str(value)

    def read(self, text: str) -> NodeName:
        return NodeName.parse(text)


class Nodes(_Column[tuple[NodeName, ...]]):
    """``["decode/0", "prefill/0"]``, in order."""

    cache_ok = True

    def write(self, value: tuple[NodeName, ...]) -> str:
        return json.dumps([str(node) for node in value])

    def read(self, text: str) -> tuple[NodeName, ...]:
        return tuple(NodeName.parse(node) for node in json.loads(text))


class Words(_Column[tuple[str, ...]]):
    """Plain texts, in order."""

    cache_ok = True

    def write(self, value: tuple[str, ...]) -> str:
        return json.dumps(list(value))

    def read(self, text: str) -> tuple[str, ...]:
        return tuple(json.loads(text))


class Shape(_Column[GpuShape]):
    """``B200:8``."""

    cache_ok = True

    def write(self, value: GpuShape) -> str:
        return str(value)

    def read(self, text: str) -> GpuShape:
        model, _, count = text.partition(":")
        return GpuShape(model, int(count))


class Word(TypeDecorator[StrEnum]):
    """One word of an enumeration, as its value."""

    impl = String(32)
    cache_ok = True

    def __init__(self, words: type[StrEnum]) -> None:
        super().__init__()
        self.words = words

    def process_bind_param(self, value: StrEnum | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else self.words(value).value

    def process_result_value(self, value: str | None, dialect: Dialect) -> StrEnum | None:  # noqa: ARG002
        return None if value is None else _read(self.words, value)
