"""The caller of the mock market dies by SIGKILL at many lines of its code; the market must stay whole."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import gpufleet.providers
from gpufleet.domain.market import InstanceState
from gpufleet.providers.mock import billing, control, processes
from tests.providers.places import Place, eventually, in_state, market_of, mock_place, rent

ROOM = str(Path(gpufleet.providers.__file__).parent)
POINTS = 24
"""How many of the lines are tried; spread evenly."""


def counts(frame: FrameType) -> bool:
    """Lines of the provider, but not those that look at each process of this machine: their number varies."""
    code = frame.f_code
    return code.co_filename.startswith(ROOM) and code.co_name not in {"by_root", "_root_of"}


def lines_of(action: Callable[[], Any]) -> int:
    """How many lines of the provider's code an action runs through."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        count += event == "line" and counts(frame)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def killed_at(line: int, action: Callable[[], Any]) -> bool:
    """Do the action in a child process that gets SIGKILL at its ``line``-th line; false when it ended before that."""
    child = os.fork()
    if child == 0:
        left = line

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal left
            if event == "line" and counts(frame):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        action()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def tracked(place: Place) -> set[str]:
    """Root directories of what the market lists as alive."""
    alive = {InstanceState.PROVISIONING, InstanceState.BOOTING, InstanceState.RUNNING}
    listed = place.open().inventory().instances
    return {str(market_of(place) / "nodes" / i.instance_id) for i in listed if i.state in alive}


def roots_with_processes(place: Place) -> set[str]:
    nodes = market_of(place) / "nodes"
    return set(processes.by_root([str(p) for p in nodes.iterdir()] if nodes.is_dir() else []))


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[[], Place]]:
    """Makes markets in which nothing has happened yet, so that an action runs through the same lines in each."""
    places: list[Place] = []

    def make() -> Place:
        folder = tmp_path / str(len(places))
        folder.mkdir()
        places.append(mock_place(folder))
        return places[-1]

    yield make
    for place in places:
        control.stop_all(market_of(place))


def end(place: Place, key: str) -> None:
    provider = place.open()
    (instance,) = provider.inventory().named(key)
    provider.terminate(instance.instance_id)


def test_a_create_killed_at_any_line_is_done_or_not_done_and_never_loses_a_process(
    fresh: Callable[[], Place],
) -> None:
    first = fresh()
    rent(first.open(), "gf-test-warm-up")  # so that lazy imports do not count
    counted = fresh()
    total = lines_of(lambda: rent(counted.open(), "gf-test-0-k"))
    outcomes = set()
    # A run may take some lines fewer than the one that was counted.
    for line in range(total - total // 20, 0, -max(1, total // POINTS)):
        place = fresh()
        assert killed_at(line, lambda place=place: rent(place.open(), "gf-test-0-k"))
        made = place.open().inventory().named("gf-test-0-k")
        outcomes.add(len(made))
        assert eventually(lambda place=place: tracked(place) == roots_with_processes(place))
        assert len(billing.read(market_of(place))) == len(made)
        rent(place.open(), "gf-test-1-k")
        for instance in place.open().inventory().instances:
            place.open().terminate(instance.instance_id)
            in_state(place.open(), instance.instance_id, InstanceState.TERMINATED)
        assert control.running(market_of(place)) == []
        assert [charge.ended is None for charge in billing.read(market_of(place))] == [False] * (len(made) + 1)
    assert outcomes == {0, 1}


def test_a_terminate_killed_at_any_line_can_be_repeated_and_is_billed_once(fresh: Callable[[], Place]) -> None:
    counted = fresh()
    rent(counted.open(), "gf-test-0-k")
    total = lines_of(lambda: end(counted, "gf-test-0-k"))
    # A run may take some lines fewer than the one that was counted.
    for line in range(total - total // 20, 0, -max(1, total // POINTS)):
        place = fresh()
        made = rent(place.open(), "gf-test-0-k")
        assert killed_at(line, lambda place=place: end(place, "gf-test-0-k"))
        place.open().terminate(made.instance_id)
        in_state(place.open(), made.instance_id, InstanceState.TERMINATED)
        assert [charge.ended is not None for charge in billing.read(market_of(place))] == [True]
        assert control.running(market_of(place)) == []


def test_a_look_killed_while_it_clears_up_is_made_good_by_the_next(fresh: Callable[[], Place]) -> None:
    def ended() -> Place:
        place = fresh()
        provider = place.open()
        deadline = datetime.now(UTC) + timedelta(seconds=0.5)
        rent(provider, deadline_at=deadline)
        eventually(lambda: datetime.now(UTC) > deadline + timedelta(seconds=0.05))
        return place

    counted = ended()
    total = lines_of(lambda: counted.open().inventory())
    # A run may take some lines fewer than the one that was counted.
    for line in range(total - total // 20, 0, -max(1, total // POINTS)):
        place = ended()
        killed_at(line, lambda place=place: place.open().inventory())
        assert place.open().inventory().instances[0].state is InstanceState.TERMINATED
        assert control.running(market_of(place)) == []
        assert len(billing.read(market_of(place))) == 1
