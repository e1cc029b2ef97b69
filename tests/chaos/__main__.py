"""The whole matrix, or one trial: ``python -m tests.chaos [--seeds 20] [--scenario up --seed 3 --point 7 --after]``."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.chaos.trial import SCENARIOS, Trial, play

_TELL_EVERY = 200
_ENOUGH = 110
"""A point that a run does not come to is no kill: the run ends well, and so must what follows."""


def attempt(trial: Trial) -> tuple[Trial, str]:
    """Play a trial; returns what went wrong, or nothing."""
    try:
        play(trial)
    except Exception:  # noqa: BLE001 - whatever it is, the matrix goes on and tells it at the end
        return trial, traceback.format_exc(limit=-3)
    return trial, ""


def counted(trial: Trial) -> tuple[Trial, int]:
    """How many points this scenario has with this seed; where its first run fails, more than any scenario has."""
    count = play(trial)
    return trial, _ENOUGH if count in {255, 0} else count


def trials(scenario: str, seed: int, count: int, *, both: bool) -> Iterator[Trial]:
    """Every point, killed before and after it, or before and after in turns."""
    for point in range(1, count + 1):
        sides = (False, True) if both else ((point + seed) % 2 == 0,)
        yield from (Trial(scenario, seed, point, after) for after in sides)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--scenario", choices=SCENARIOS)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--point", type=int)
    parser.add_argument("--after", action="store_true")
    parser.add_argument("--workers", type=int, default=8, help="trials wait more than they work")
    parser.add_argument("--turns", action="store_true", help="half of the trials: before and after a point in turns")
    wanted = parser.parse_args()
    if wanted.point is not None:
        play(Trial(wanted.scenario, wanted.seed, wanted.point, wanted.after))
        return 0
    seeds = [wanted.seed] if wanted.seed is not None else list(range(wanted.seeds))
    began = time.monotonic()
    plays = [Trial(scenario, seed) for scenario in SCENARIOS if wanted.scenario in {None, scenario} for seed in seeds]
    failed = 0
    with ProcessPoolExecutor(wanted.workers, mp_context=get_context("fork")) as pool:
        counts = list(pool.map(counted, plays))
        matrix = [t for first, n in counts for t in trials(first.scenario, first.seed, n, both=not wanted.turns)]
        for number, (trial, wrong) in enumerate(pool.map(attempt, matrix, chunksize=8), 1):
            if number % _TELL_EVERY == 0:
                left = (time.monotonic() - began) / number * (len(matrix) - number)
                print(f"{number} of {len(matrix)} trials, about {left / 60:.0f} min left", file=sys.stderr)
            if wrong:
                failed += 1
                print(f"FAILED {trial.command}\n{wrong}", file=sys.stderr)
    print(f"{len(matrix)} trials over {len(seeds)} seeds in {time.monotonic() - began:.0f} s: {failed} failed "
          "(leaked, rented twice, billed otherwise, or not brought to an end)")  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
