"""The market's own meter, kept apart from gpufleet's ledger so that tests can compare the two.

``billing.json`` holds one line per finished rental, in the order in which they ended. Sums are computed here, with
exact fractions, and not with `gpufleet.domain.money`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

from pydantic import BaseModel, Field

from gpufleet.providers.document import Document
from gpufleet.providers.mock.lifecycle import ends_at
from gpufleet.providers.mock.market import Market, Rental, Volume, document


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
    memory = document(directory)
    with memory.locked() as market:
        if settle(directory, market, now):
            memory.save(market)
        running = [_charge(r, now, ended=None) for r in market.rentals.values() if not r.billed]
        with _book(directory).locked() as statement:
            return [*statement.lines, *running]


@dataclass(frozen=True)
class VolumeCharge:
    """One disk on the bill."""

    volume_id: str
    name: str
    used_by: str
    started: datetime
    ended: datetime | None
    usd: Decimal


def volumes(directory: Path, now: datetime | None = None) -> list[VolumeCharge]:
    """Every disk of the market, deleted or not; they are billed to the second."""
    now = now or datetime.now(UTC)
    with document(directory).locked() as market:
        return [
            VolumeCharge(
                v.volume_id, v.name, v.used_by, v.created_at, v.deleted_at, _volume_usd(v, v.deleted_at or now)
            )
            for v in market.volumes.values()
        ]


def keys(directory: Path) -> list[str]:
    """Names of the SSH keys that the market holds, of all accounts. They cost nothing, and lie about."""
    with document(directory).locked() as market:
        return [key.name for key in market.ssh_keys.values()]


def settle(directory: Path, market: Market, now: datetime) -> bool:
    """Write a line for each rental that has ended and has none; true when the memory changed.

    Only while the market is locked. A caller killed between the line and the memory leaves a line that is found here.
    """
    due = [(r, ended) for r in market.rentals.values() if not r.billed and (ended := ends_at(r)) and ended <= now]
    if not due:
        return False
    book = _book(directory)
    with book.locked() as statement:
        written = {line.instance_id for line in statement.lines}
        lines = [_charge(r, ended, ended=ended) for r, ended in due if r.instance_id not in written]
        statement.lines.extend(sorted(lines, key=lambda line: (line.ended or now, line.instance_id)))
        book.save(statement)
    for rental, _ in due:
        rental.billed = True
    return True


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
    started_increments = -(-_micros(until - rental.created_at) // (rental.increment_s * 1_000_000))
    seconds = max(started_increments * rental.increment_s, rental.minimum_s)
    return _price(rental.usd_per_hour, seconds)


def _volume_usd(volume: Volume, until: datetime) -> Decimal:
    return _price(volume.usd_per_hour, -(-_micros(until - volume.created_at) // 1_000_000))


def _micros(elapsed: timedelta) -> int:
    return max(0, (elapsed.days * 86400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds)


def _price(usd_per_hour: Decimal, seconds: int) -> Decimal:
    total = Fraction(usd_per_hour) * seconds / 3600
    return Decimal(total.numerator) / Decimal(total.denominator)
