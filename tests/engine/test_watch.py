"""What a node's watch tells: one phase at a time, and a time to ready that does not flicker."""

from __future__ import annotations

import pytest

from gpufleet.domain.jobs import JobEvent, JobEventKind
from gpufleet.domain.nodes import NodeName
from gpufleet.domain.progress import Progress, ProgressState
from gpufleet.engine.watch import NodeWatch
from gpufleet.errors import NodeFailed

NODE = NodeName("decode", 0)
EXPECTED = {"boot": 10.0, "check": 5.0, "image": 20.0, "weights": 100.0, "serve": 30.0}


class Watched:
    def __init__(self) -> None:
        self.seconds = 0.0
        self.told: list[Progress] = []
        self.watch = NodeWatch(NODE, self.told.append, EXPECTED, clock=lambda: self.seconds)

    @property
    def last(self) -> Progress:
        return self.told[-1]

    def progress(self, job: str, *, step: str = "s", percent: float | None = None) -> None:
        self.watch.event(JobEvent(JobEventKind.PROGRESS, job, step, percent))


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_the_first_estimate_is_that_of_the_plan(watched: Watched) -> None:
    watched.watch.phase("rent")
    assert watched.last.eta_seconds == sum(EXPECTED.values())
    watched.watch.phase("boot")
    assert watched.last.eta_seconds == sum(EXPECTED.values())


def test_of_phases_side_by_side_the_later_one_is_told_until_it_has_ended(watched: Watched) -> None:
    with watched.watch.alongside("image", "image"):
        with watched.watch.alongside("weights", "weights-fetch"):
            watched.progress("image", step="pull")
            assert watched.last.phase == "weights"
            watched.progress("weights-fetch", step="download", percent=40)
            assert (watched.last.phase, watched.last.step, watched.last.percent) == ("weights", "download", 40)
        assert (watched.last.phase, watched.last.step) == ("image", "pull")


def test_a_node_with_nothing_to_do_waits_for_others(watched: Watched) -> None:
    with watched.watch.alongside("image", "image"):
        pass
    assert (watched.last.phase, watched.last.message) == ("wait", "for other nodes")
    with watched.watch.alongside("serve", "serve-x"):
        assert watched.last.phase == "serve"


def test_an_estimate_never_grows_by_itself(watched: Watched) -> None:
    watched.watch.phase("boot")
    left: list[float] = []
    for phase in ("image", "weights", "serve"):
        watched.seconds += 3
        with watched.watch.alongside(phase, phase):
            watched.seconds += 15
            watched.progress(phase)
        left.append(watched.last.eta_seconds or 0.0)
    assert left == sorted(left, reverse=True)


def test_a_wait_for_the_others_counts_as_time_that_passes(watched: Watched) -> None:
    watched.watch.phase("boot")
    with watched.watch.alongside("image", "image"):
        pass
    before = watched.last.eta_seconds
    assert before is not None
    watched.seconds += 90
    with watched.watch.alongside("weights", "weights-copy"):
        assert watched.last.eta_seconds == before - 90


def test_only_a_percentage_that_has_grown_a_little_makes_an_estimate_longer(watched: Watched) -> None:
    with watched.watch.alongside("weights", "w"):
        watched.seconds = 20
        watched.progress("w", percent=1)
        assert watched.last.eta_seconds == pytest.approx(100 - 20 + 30 + 35)
        watched.progress("w", percent=10)
        assert watched.last.eta_seconds == pytest.approx(180 + 30 + 35)


def test_a_failure_names_its_phase_and_silences_what_runs_beside_it(watched: Watched) -> None:
    with watched.watch.alongside("weights", "w"):
        with pytest.raises(NodeFailed), watched.watch.alongside("image", "i"):
            raise NodeFailed("no such image")
        watched.watch.failed("no such image")
        assert (watched.last.phase, watched.last.state) == ("image", ProgressState.FAILED)
        watched.progress("w", percent=50)
    assert watched.last.state is ProgressState.FAILED


def test_a_failure_is_told_once_and_does_not_repeat_its_node(watched: Watched) -> None:
    watched.watch.phase("check")
    watched.watch.failed("decode/0: no GPUs; released")
    assert watched.last.message == "no GPUs; released"
    watched.watch.failed("decode/0: no GPUs")
    assert [event.state for event in watched.told].count(ProgressState.FAILED) == 1


def test_a_node_rented_again_begins_anew(watched: Watched) -> None:
    watched.watch.phase("boot")
    watched.seconds = 30
    watched.watch.failed("it is broken")
    watched.watch.phase("rent")
    assert watched.last.eta_seconds == sum(EXPECTED.values())
