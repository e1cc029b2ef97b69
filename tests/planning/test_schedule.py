"""Windows open when a clock on the wall says so, once each day, in every zone and all year round."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.planning.counts import Asked, counts_in_force
from gpufleet.planning.schedule import changes, counts_at, midnight, open_windows, resolve
from gpufleet.spec.model import Fleet
from tests.planning.builders import fleet

ZONES = ("Europe/Berlin", "America/Santiago", "Asia/Kolkata")
"""North and south of the equator, and without daylight saving."""
YEAR = datetime(2026, 1, 1, tzinfo=UTC)
NEXT_YEAR = datetime(2027, 1, 1, tzinfo=UTC)


def scheduled(*windows: dict[str, object], zone: str = "Europe/Berlin", base: dict[str, int] | None = None) -> Fleet:
    return fleet(4, 2, 1, schedule={"zone": zone, "windows": list(windows), "base": base or {}})


def window(name: str = "night", opens: str = "22:00", closes: str = "06:00", **counts: int) -> dict[str, object]:
    return {"name": name, "from": opens, "to": closes, "counts": counts or {"decode": 1}}


def berlin(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo("Europe/Berlin")).astimezone(UTC)


def test_outside_of_all_windows_the_file_counts() -> None:
    spec = scheduled(window(decode=1))
    assert counts_at(spec, berlin("2026-06-10 12:00")) == {"prefill": 4, "decode": 2, "native": 1}
    assert counts_at(spec, berlin("2026-06-10 22:00"))["decode"] == 1
    assert counts_at(spec, berlin("2026-06-11 05:59"))["decode"] == 1
    assert counts_at(spec, berlin("2026-06-11 06:00"))["decode"] == 2


def test_a_window_of_one_day_reaches_into_the_next_and_no_further() -> None:
    spec = scheduled({**window(), "days": "fri"})
    assert open_windows(spec, berlin("2026-06-13 03:00")) == ("night",)
    assert open_windows(spec, berlin("2026-06-12 03:00")) == ()


def test_of_two_open_windows_the_last_one_decides_pool_by_pool() -> None:
    spec = scheduled(window("all", "00:00", "24:00", decode=4, native=3), window("noon", "12:00", "13:00", decode=3))
    assert counts_at(spec, berlin("2026-06-10 12:30")) == {"prefill": 4, "decode": 3, "native": 3}


def test_nothing_goes_below_the_base() -> None:
    spec = scheduled(window(decode=0, native=0), base={"decode": 1})
    assert counts_at(spec, berlin("2026-06-10 23:00")) == {"prefill": 4, "decode": 1, "native": 0}


@pytest.mark.parametrize(
    ("clock", "expected"),
    [("02:30", "2026-03-29T01:00"), ("02:00", "2026-03-29T01:00"), ("03:00", "2026-03-29T01:00")],
)
def test_a_time_that_the_clock_skips_is_the_next_one_there_is(clock: str, expected: str) -> None:
    found = resolve(date(2026, 3, 29), time.fromisoformat(clock), ZoneInfo("Europe/Berlin"))
    assert found == datetime.fromisoformat(expected).replace(tzinfo=UTC)


def test_of_a_time_that_comes_twice_the_first_counts() -> None:
    found = resolve(date(2026, 10, 25), time(2, 30), ZoneInfo("Europe/Berlin"))
    assert found == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)


def test_a_zone_that_skips_midnight_has_a_first_moment_of_that_day() -> None:
    """Santiago's clock goes from 24:00 to 01:00 on 2026-09-06."""
    found = midnight(scheduled(window(), zone="America/Santiago"), datetime(2026, 9, 6, 12, tzinfo=UTC))
    assert found == datetime(2026, 9, 6, 4, tzinfo=UTC)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize(("opens", "closes"), [("22:00", "06:00"), ("02:30", "03:30"), ("00:00", "24:00")])
def test_over_a_year_a_window_opens_once_on_each_of_its_days(zone: str, opens: str, closes: str) -> None:
    spec = scheduled({**window("w", opens, closes), "days": ["tue", "sat-sun"]}, zone=zone)
    found = changes(spec, YEAR, NEXT_YEAR)
    opened = [change.at.astimezone(ZoneInfo(zone)) for change in found if change.windows]
    days = [local.date() for local in opened]
    assert len(days) == len(set(days))
    year = [date(2026, 1, 1) + timedelta(days=n) for n in range(365)]
    wanted = [day for day in year if day.weekday() in {1, 5, 6}]
    if closes == "24:00":  # Saturday's and Sunday's run into each other
        wanted = [day for day in wanted if day.weekday() != 6]
    assert set(wanted) - set(days) <= {year[0]}
    assert set(days) - set(wanted) <= {date(2027, 1, 1)}
    assert all(a.counts != b.counts for a, b in itertools.pairwise(found))


@pytest.mark.parametrize("zone", ZONES)
def test_ticks_at_any_minutes_see_every_change_once(zone: str) -> None:
    """A tick that was missed is caught up by the next one: what counts is what is true then."""
    spec = scheduled(window(), window("lunch", "12:00", "13:30", native=4), zone=zone)
    rng = random.Random(zone)
    last, at, seen = counts_at(spec, YEAR), YEAR, 0
    while at < NEXT_YEAR:
        step = timedelta(minutes=rng.choice([1, 5, 5, 5, 30, 200, 2000]))
        between = changes(spec, at, at + step)
        at += step
        now = counts_at(spec, at)
        assert now == (between[-1].counts if between else last)
        seen += len(between)
        last = now
    assert seen == len(changes(spec, YEAR, at))


@given(minutes=st.integers(0, 60 * 24 * 365), span=st.integers(1, 60 * 24 * 40), cut=st.floats(0, 1))
def test_looking_twice_finds_what_looking_once_does(minutes: int, span: int, cut: float) -> None:
    spec = scheduled(window(), {**window("late", "01:30", "02:45", native=2), "days": "sun"})
    since = YEAR + timedelta(minutes=minutes)
    until = since + timedelta(minutes=span)
    between = since + (until - since) * cut
    assert changes(spec, since, between) + changes(spec, between, until) == changes(spec, since, until)


NOON = berlin("2026-06-10 12:00")


def asked(spec: Fleet, at: datetime = NOON, **counts: int) -> Asked:
    return Asked(counts, {pool: spec.pools[pool].count for pool in counts}, at)


def test_what_was_asked_for_holds_until_the_schedule_changes_that_pool() -> None:
    spec = scheduled(window(decode=1))
    wish = asked(spec, decode=3, native=0)
    assert counts_in_force(spec, berlin("2026-06-10 21:59"), wish) == {"prefill": 4, "decode": 3, "native": 0}
    assert counts_in_force(spec, berlin("2026-06-10 22:00"), wish) == {"prefill": 4, "decode": 1, "native": 0}
    assert counts_in_force(spec, berlin("2026-06-11 12:00"), wish)["decode"] == 2


def test_what_was_asked_for_holds_until_the_file_says_something_else() -> None:
    spec = fleet(2, 2, 1)
    wish = asked(spec, decode=1)
    assert counts_in_force(spec, NOON, wish)["decode"] == 1
    assert counts_in_force(fleet(2, 3, 1), NOON, wish)["decode"] == 3
    assert counts_in_force(fleet(2, 2, 4), NOON, wish) == {"prefill": 2, "decode": 1, "native": 4}


def test_a_pool_that_the_file_lost_is_not_asked_for() -> None:
    wish = Asked({"gone": 3}, {"gone": 1}, NOON)
    assert counts_in_force(fleet(1, 1), NOON, wish) == {"prefill": 1, "decode": 1, "native": 0}
