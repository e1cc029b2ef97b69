"""Reports of schedules that ran at the wrong time, twice, or never; see docs/faults.md."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gpufleet.errors import InvalidFleet
from gpufleet.planning.schedule import changes, counts_at
from gpufleet.spec.load import parse_fleet
from gpufleet.spec.model import Fleet
from tests.planning.builders import fleet
from tests.spec.fleets import BASE

YEAR = datetime(2026, 1, 1, tzinfo=UTC)


def nightly(zone: str, opens: str = "02:30", closes: str = "04:00") -> Fleet:
    window = {"name": "night", "from": opens, "to": closes, "counts": {"decode": 1}}
    return fleet(2, 2, schedule={"zone": zone, "windows": [window]})


@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
def test_agent_os_2472_a_window_opens_once_on_the_days_on_which_the_clock_changes(day: str) -> None:
    since = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(hours=2)
    found = changes(nightly("Europe/Berlin"), since, since + timedelta(hours=24))
    assert [change.windows for change in found] == [("night",), ()]


def test_croniter_48_times_are_those_of_the_schedules_zone_and_not_of_the_machine() -> None:
    opened = [changes(nightly(zone), YEAR, YEAR + timedelta(days=1))[0].at for zone in ("Asia/Kolkata", "UTC")]
    assert opened == [datetime(2026, 1, 1, 21, 0, tzinfo=UTC), datetime(2026, 1, 1, 2, 30, tzinfo=UTC)]


def test_openyak_158_a_schedule_without_a_zone_is_refused() -> None:
    text = BASE + "schedule:\n  windows:\n  - {name: night, from: '22:00', to: '06:00', counts: {decode: 1}}\n"
    with pytest.raises(InvalidFleet, match="zone"):
        parse_fleet(text)


@pytest.mark.parametrize("zone", ["Berlin", "CET+1", "../etc/passwd", "GMT+25"])
def test_dkron_1031_a_zone_that_does_not_exist_is_refused_and_never_taken_for_utc(zone: str) -> None:
    window = "{name: night, from: '22:00', to: '06:00', counts: {decode: 1}}"
    with pytest.raises(InvalidFleet, match="no time zone"):
        parse_fleet(BASE + f"schedule:\n  zone: {zone}\n  windows: [{window}]\n")


def test_dagu_1180_a_step_that_comes_late_does_what_is_due_now_once_and_nothing_of_what_it_missed() -> None:
    """What is to be is asked, never what was missed: after three days without a tick it is as if none was left out."""
    spec = nightly("Europe/Berlin")
    late = datetime(2026, 6, 13, 12, tzinfo=UTC)
    assert len(changes(spec, late - timedelta(days=3), late)) == 6
    assert counts_at(spec, late) == spec.counts
