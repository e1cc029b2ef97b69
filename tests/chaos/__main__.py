"""The whole matrix, or one trial: ``python -m tests.chaos [--seeds 20] [--scenario up --seed 3 --point 7 --after]``."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.chaos.trial import SCENARIOS, Trial, play


def attempt(trial: Trial) -> tuple[Trial, str]:
    """Play a trial; returns what went wrong, or nothing."""
    try:
        play(trial)
    except Exception:  # noqa: BLE001 - whatever it is, the matrix goes on and tells it at the end
        return trial, traceback.format_exc(limit=-3)
    return trial, ""


def trials(scenarios: list[str], seeds: list[int]) -> list[Trial]:
    found = []
    for scenario in scenarios:
        for seed in seeds:
            count = play(Trial(scenario, seed))
            count = 60 if count in {255, 0} else count
            found += [Trial(scenario, seed, point, after) for point in range(1, count + 1) for after in (False, True)]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--scenario", choices=SCENARIOS)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--point", type=int)
    parser.add_argument("--after", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    wanted = parser.parse_args()
    if wanted.point is not None:
        play(Trial(wanted.scenario, wanted.seed, wanted.point, wanted.after))
        return 0
    seeds = [wanted.seed] if wanted.seed is not None else list(range(wanted.seeds))
    began = time.monotonic()
    matrix = trials([wanted.scenario] if wanted.scenario else list(SCENARIOS), seeds)
    failed = 0
    with ProcessPoolExecutor(wanted.workers, mp_context=get_context("fork")) as pool:
        for trial, wrong in pool.map(attempt, matrix, chunksize=8):
            if wrong:
                failed += 1
                print(f"FAILED {trial.command}\n{wrong}", file=sys.stderr)
    print(f"{len(matrix)} trials over {len(seeds)} seeds in {time.monotonic() - began:.0f} s: {failed} failed "
          "(leaked, rented twice, billed otherwise, or not brought to an end)")  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
