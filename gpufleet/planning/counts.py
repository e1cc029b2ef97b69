"""How many nodes of each pool there are to be: what the file, its schedule and the operator say. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from gpufleet.planning.schedule import changes, counts_at
from gpufleet.spec.model import Fleet


@dataclass(frozen=True)
class Asked:
    """What `gpufleet scale` asked for last."""

    counts: Mapping[str, int]
    """Per pool that was named."""
    of_file: Mapping[str, int]
    """What the fleet file said of these pools then."""
    at: datetime


def counts_in_force(fleet: Fleet, at: datetime, asked: Asked | None = None) -> dict[str, int]:
    """Nodes per pool now.

    What was asked for holds until the schedule changes that pool's count, or the file does: the later word counts.
    """
    counts = counts_at(fleet, at)
    for pool, count in (asked.counts if asked else {}).items():
        if pool in counts and asked and _still_holds(fleet, pool, asked, at):
            counts[pool] = count
    return counts


def _still_holds(fleet: Fleet, pool: str, asked: Asked, at: datetime) -> bool:
    if asked.of_file.get(pool) != fleet.pools[pool].count:
        return False
    was = counts_at(fleet, asked.at)[pool]
    return all(change.counts[pool] == was for change in changes(fleet, asked.at, at))
