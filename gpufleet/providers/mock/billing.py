"""The market's own meter, kept apart from gpufleet's ledger so that tests can compare the two.

``billing.json`` holds one line per finished rental, in the order in which they ended. Sums are computed here, with
exact fractions, and not with `gpufleet.domain.money`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

from pydantic import BaseModel, Field

from gpufleet.providers.document import Document
from gpufleet.providers.mock.lifecycle import ends_at
from gpufleet.providers.mock.market import Market, Rental, document


@dataclass(frozen=True)
class Charge:
    """One rental on the bill."""

    instance_id: str
    key: str
    fleet: str
    node: str
    usd_per_hour: Decimal
    started: datetime
    ended: datetime | None
    """None while the meter runs; ``usd`` is then what it shows now."""
    usd: Decimal


class _Statement(BaseModel):
    lines: list[Charge] = Field(default_factory=list)


def read(directory: Path, now: datetime | None = None) -> list[Charge]:
    """Every rental of the market that lives in ``directory``, finished ones first; unrounded USD."""
    now = now or datetime.now(UTC)
    with document(directory).locked() as market:
        finished = settle(directory, market, now)
        billed = {line.instance_id for line in finished}
        running = [r for r in market.rentals.values() if r.instance_id not in billed]
        return [*finished, *(_charge(r, now, ended=None) for r in running)]


def settle(directory: Path, market: Market, now: datetime) -> list[Charge]:
    """Write a line for each rental that has ended and has none; returns all lines. Only while the market is locked."""
    book = _book(directory)
    with book.locked() as statement:
        billed = {line.instance_id for line in statement.lines}
        due = [
            _charge(rental, ended, ended=ended)
            for rental in market.rentals.values()
            if rental.instance_id not in billed and (ended := ends_at(rental)) and ended <= now
        ]
        if due:
            statement.lines.extend(sorted(due, key=lambda line: (line.ended or now, line.instance_id)))
            book.save(statement)
        return statement.lines


def _book(directory: Path) -> Document[_Statement]:
    return Document(directory / "billing.json", _Statement)


def _charge(rental: Rental, until: datetime, *, ended: datetime | None) -> Charge:
    return Charge(
        instance_id=rental.instance_id,
        key=rental.key,
        fleet=rental.fleet,
        node=rental.node,
        usd_per_hour=rental.usd_per_hour,
        started=rental.created_at,
        ended=ended,
        usd=_usd(rental, until),
    )


def _usd(rental: Rental, until: datetime) -> Decimal:
    elapsed = until - rental.created_at
    micros = max(0, (elapsed.days * 86400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds)
    started_increments = -(-micros // (rental.increment_s * 1_000_000))
    seconds = max(started_increments * rental.increment_s, rental.minimum_s)
    total = Fraction(rental.usd_per_hour) * seconds / 3600
    return Decimal(total.numerator) / Decimal(total.denominator)
