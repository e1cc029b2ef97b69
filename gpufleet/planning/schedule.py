"""When a schedule's windows are open, and how many nodes there are to be then. Pure; daylight saving included.

A window opens and closes at instants: its wall-clock times resolved in the schedule's zone, day by day. A time that the
clock skips in spring is the instant at which it skips; of a time that comes twice in autumn the first counts. So every
window opens exactly once on each of its days, however often or seldom somebody looks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from gpufleet.spec.model import Fleet
from gpufleet.spec.schedule import DAYS, Window

_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Change:
    """From this instant on the counts are others than before."""

    at: datetime
    """UTC."""
    counts: dict[str, int]
    windows: tuple[str, ...]
    """Those that are open from then on."""


def counts_at(fleet: Fleet, at: datetime) -> dict[str, int]:
    """Nodes per pool at an instant: the last of the open windows decides, and nothing goes below the base."""
    schedule = fleet.schedule
    counts = fleet.counts
    if schedule is None:
        return counts
    for window in schedule.windows:
        if _is_open(window, ZoneInfo(schedule.zone), at):
            counts |= window.counts
    return {pool: max(count, schedule.base.get(pool, 0)) for pool, count in counts.items()}


def open_windows(fleet: Fleet, at: datetime) -> tuple[str, ...]:
    """The names of the windows that are open at an instant, in file order."""
    if fleet.schedule is None:
        return ()
    zone = ZoneInfo(fleet.schedule.zone)
    return tuple(window.name for window in fleet.schedule.windows if _is_open(window, zone, at))


def changes(fleet: Fleet, since: datetime, until: datetime) -> list[Change]:
    """Every instant after ``since`` and up to ``until`` at which the counts change, in order."""
    if fleet.schedule is None:
        return []
    zone = ZoneInfo(fleet.schedule.zone)
    edges = {
        edge
        for window in fleet.schedule.windows
        for opened, closed in _openings(window, zone, since - 2 * _DAY, until + _DAY)
        for edge in (opened, closed)
        if since < edge <= until
    }
    found: list[Change] = []
    last = counts_at(fleet, since)
    for edge in sorted(edges):
        counts = counts_at(fleet, edge)
        if counts != last:
            found.append(Change(edge, counts, open_windows(fleet, edge)))
            last = counts
    return found


def midnight(fleet: Fleet, at: datetime) -> datetime:
    """When the day began that an instant lies in, in the schedule's zone, UTC without a schedule."""
    zone = ZoneInfo(fleet.schedule.zone if fleet.schedule else "UTC")
    return resolve(at.astimezone(zone).date(), time(), zone)


def resolve(day: date, clock: time, zone: ZoneInfo) -> datetime:
    """The instant, in UTC, at which a wall clock first shows this time on this day, or would have shown it."""
    local = datetime.combine(day, clock, tzinfo=zone)
    early = local.replace(fold=0).astimezone(UTC)
    if early.astimezone(zone).replace(tzinfo=None) == local.replace(tzinfo=None):
        return early
    return _skip(local, zone)


def _skip(local: datetime, zone: ZoneInfo) -> datetime:
    """The instant at which the clock skips ``local``: between its two readings, where the offset changes."""
    low, high = local.replace(fold=1).astimezone(UTC), local.replace(fold=0).astimezone(UTC)
    before = low.astimezone(zone).utcoffset()
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) / 2
        if middle.astimezone(zone).utcoffset() == before:
            low = middle
        else:
            high = middle
    return high.replace(microsecond=0)


def _is_open(window: Window, zone: ZoneInfo, at: datetime) -> bool:
    return any(opened <= at < closed for opened, closed in _openings(window, zone, at - 2 * _DAY, at + _DAY))


def _openings(window: Window, zone: ZoneInfo, since: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Each time from ``since`` on that the window opens, and when it closes again."""
    day, last = since.astimezone(zone).date(), until.astimezone(zone).date()
    over_midnight = window.closes <= window.opens
    while day <= last:
        if DAYS[day.weekday()] in window.days:
            yield resolve(day, window.opens, zone), resolve(day + _DAY * over_midnight, window.closes, zone)
        day += _DAY
