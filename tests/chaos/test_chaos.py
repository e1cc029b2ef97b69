"""A sample of the matrix (``make chaos`` plays all of it), and proof that it would see a fault."""

from __future__ import annotations

import random

import pytest

from gpufleet.engine import sweep
from tests.chaos.trial import SCENARIOS, Trial, play

pytestmark = pytest.mark.spread
SEEDS = 20
_SAMPLE = random.Random(3)
SAMPLED = [
    Trial(scenario, seed, point=_SAMPLE.randint(1, 14), after=_SAMPLE.random() < 0.5)
    for scenario in SCENARIOS
    for seed in _SAMPLE.sample(range(SEEDS), 8)
]


@pytest.mark.parametrize("trial", SAMPLED, ids=lambda t: t.command.removeprefix("python -m tests.chaos "))
def test_killed_anywhere_nothing_is_leaked_or_rented_twice(trial: Trial) -> None:
    play(trial)


def test_the_harness_sees_a_run_that_forgets_what_an_earlier_one_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_settle", lambda *_: None)
    wrong = 0
    for point in range(10, 22):
        try:
            play(Trial("up", 0, point, after=True))
        except AssertionError:
            wrong += 1
    assert wrong
