"""``schedule:`` of the fleet file: how many nodes of each pool when, on the wall clock of one time zone."""

from __future__ import annotations

import re
from datetime import time
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from gpufleet.spec.base import Strict
from gpufleet.spec.values import check_channel_name, check_pool_name

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_CLOCK = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])|24:00")


def _check_zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"'{value}' is no time zone; write one such as Europe/Berlin, America/New_York or UTC"
        ) from None
    return value


def _parse_clock(value: Any) -> time:
    if isinstance(value, time):
        return value
    if not isinstance(value, str) or not _CLOCK.fullmatch(value):
        raise ValueError("a time of day is HH:MM from 00:00 to 24:00")
    hour, _, minute = value.partition(":")
    return time(int(hour) % 24, int(minute))


def _parse_days(value: Any) -> tuple[str, ...]:
    """``mon-fri``, ``sat``, or a list of either; a range may run over Sunday (``fri-mon``)."""
    words = [value] if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else [""]
    found: set[str] = set()
    for word in words:
        first, dash, last = str(word).partition("-")
        if first not in DAYS or (dash and last not in DAYS):
            raise ValueError(f"days are {', '.join(DAYS)}, or a range of them such as mon-fri")
        begin, end = DAYS.index(first), DAYS.index(last or first)
        found |= {DAYS[(begin + step) % 7] for step in range((end - begin) % 7 + 1)}
    if not found:
        raise ValueError("name at least one day")
    return tuple(day for day in DAYS if day in found)


Clock = Annotated[
    time,
    BeforeValidator(_parse_clock),
    PlainSerializer(lambda value: value.strftime("%H:%M"), return_type=str),
    WithJsonSchema({"type": "string", "pattern": f"^({_CLOCK.pattern})$", "examples": ["08:00", "22:30"]}),
]
"""``08:00``, on the clock of the schedule's zone."""
Days = Annotated[
    tuple[str, ...],
    BeforeValidator(_parse_days),
    PlainSerializer(list, return_type=list),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}], "examples": ["mon-fri"]}
    ),
]
Count = Annotated[int, Field(ge=0, le=512)]
_Pool = Annotated[str, AfterValidator(check_pool_name)]


class Window(Strict):
    """A part of the week with counts of its own."""

    name: Annotated[str, AfterValidator(check_channel_name)]
    """What `schedule show` calls it."""
    days: Days = DAYS
    """The days on which it opens: `mon-fri`, `sat`, or a list. Left out, every day."""
    opens: Clock = Field(alias="from")
    """When it opens. A time that the clock skips is taken to be the next one there is; of a time that comes twice, the
    first counts."""
    closes: Clock = Field(alias="to")
    """When it closes; not later than `from` means on the next day."""
    counts: dict[_Pool, Count] = Field(min_length=1)
    """Nodes per pool while it is open. Where windows overlap, the one that stands last in the file decides."""


class Schedule(Strict):
    """How many nodes when; carried out by `gpufleet tick`."""

    zone: Annotated[str, AfterValidator(_check_zone)]
    """IANA time zone of all times here, e.g. `Europe/Berlin`."""
    base: dict[_Pool, Count] = Field(default_factory=dict)
    """Nodes per pool below which nothing goes, whatever a window, a budget or `scale` says."""
    windows: tuple[Window, ...] = Field(min_length=1)
    """Outside of all windows a pool has its own `count`."""
