"""The schedule: pools that exist, and counts that would be a valid fleet each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations

from gpufleet.spec.model import Fleet
from gpufleet.spec.problems import Loc, Problem, Severity, did_you_mean

Checks = Callable[[Fleet], Iterable[Problem]]


def check_schedule(fleet: Fleet, checks: Iterable[Checks]) -> Iterator[Problem]:
    """Every pool that is named, and every set of counts that can come about, checked as if the file asked for it.

    Args:
        checks: what depends on counts.
    """
    schedule = fleet.schedule
    if schedule is None:
        return
    named: list[tuple[Loc, Mapping[str, int]]] = [(("schedule", "base"), schedule.base)]
    named += [(("schedule", "windows", i, "counts"), w.counts) for i, w in enumerate(schedule.windows)]
    unknown = list(_unknown(fleet, named))
    yield from unknown
    yield from _same_names(fleet)
    if not unknown:
        yield from _invalid_counts(fleet, list(checks))


def _unknown(fleet: Fleet, named: Iterable[tuple[Loc, Mapping[str, int]]]) -> Iterator[Problem]:
    for loc, counts in named:
        for pool in counts.keys() - fleet.pools.keys():
            yield Problem(
                f"the schedule counts pool {pool}, which this fleet has not{did_you_mean(pool, fleet.pools)}",
                loc=(*loc, pool),
                hint=f"pools are {', '.join(fleet.pools)}",
            )


def _same_names(fleet: Fleet) -> Iterator[Problem]:
    names = [window.name for window in fleet.schedule.windows] if fleet.schedule else []
    for index, name in enumerate(names):
        if name in names[:index]:
            yield Problem(f"two windows are named {name}", loc=("schedule", "windows", index, "name"))


def _invalid_counts(fleet: Fleet, checks: list[Checks]) -> Iterator[Problem]:
    """What no windows, each window alone and each two together make; told once per problem, at the last window."""
    assert fleet.schedule is not None
    windows = list(enumerate(fleet.schedule.windows))
    plain = {problem.message for check in checks for problem in check(fleet)}
    told: set[str] = set()
    for together in [(), *combinations(windows, 1), *combinations(windows, 2)]:
        counts = fleet.counts
        for _, window in together:
            counts |= window.counts
        counts = {pool: max(count, fleet.schedule.base.get(pool, 0)) for pool, count in counts.items()}
        loc: Loc = ("schedule", "windows", together[-1][0], "counts") if together else ("schedule", "base")
        when = " and ".join(window.name for _, window in together) or "no window"
        for problem in (found for check in checks for found in check(fleet.with_counts(counts))):
            if problem.severity is Severity.ERROR and problem.message not in plain | told:
                told.add(problem.message)
                yield replace(problem, message=f"while {when} is open: {problem.message}", loc=loc)
