"""``scale``: other counts than the file's, remembered until the file or the schedule says something else."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from gpufleet.engine.session import Session, now
from gpufleet.errors import InvalidFleet, UsageError
from gpufleet.planning.schedule import changes, counts_at

_AHEAD = timedelta(days=8)


def ask_for(session: Session, counts: Mapping[str, int]) -> None:
    """Make this run about other counts.

    Raises:
        UsageError: the fleet is not to run, or has no such pool.
        InvalidFleet: it would not work with them, or they are below the schedule's base.
    """
    fleet = session.fleet
    record = session.store.fleet(fleet.name)
    if record is None or not record.running:
        raise UsageError(f"{fleet.name} is not up", hint=f"gpufleet up {session.path}")
    if unknown := counts.keys() - fleet.pools.keys():
        raise UsageError(f"there is no pool '{min(unknown)}' in this fleet", hint=f"it has {', '.join(fleet.pools)}")
    base = fleet.schedule.base if fleet.schedule else {}
    for pool, count in counts.items():
        if count < base.get(pool, 0):
            raise InvalidFleet(
                f"{pool}={count} is below schedule.base, which keeps {base[pool]} at all times",
                where=str(session.path),
                hint="lower schedule.base in the fleet file",
            )
    session.ask_for(counts)


def remember(session: Session) -> None:
    """Write down what differs from the file and its schedule now; what an earlier `scale` asked for stays with it."""
    file, fleet = session.loaded.fleet, session.fleet
    planned = counts_at(file, now())
    asked = {pool: count for pool, count in fleet.counts.items() if count != planned[pool]}
    session.store.set_asked(fleet.name, asked, {pool: file.pools[pool].count for pool in asked})


def notes(session: Session) -> list[str]:
    """Where the counts in force are not the file's, and until when."""
    file, fleet = session.loaded.fleet, session.fleet
    at = now()
    planned = counts_at(file, at)
    coming = changes(file, at, at + _AHEAD)
    return [
        f"{pool}: {count} as asked by gpufleet scale ({_planned(file.schedule is not None)} {planned[pool]})"
        + next((f", until {change.at:%a %H:%M} UTC" for change in coming if change.counts[pool] != planned[pool]), "")
        for pool, count in fleet.counts.items()
        if count != planned[pool]
    ]


def _planned(by_schedule: bool) -> str:
    return "the schedule says" if by_schedule else "the file says"
