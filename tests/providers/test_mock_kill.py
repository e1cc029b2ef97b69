"""The caller of the mock market dies by SIGKILL at many lines of its code; the market must stay whole."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import gpufleet.providers
from gpufleet.domain.market import InstanceState, OfferQuery
from gpufleet.providers.mock import billing, control, processes
from tests.providers.places import Place, eventually, in_state, market_of, rent

ROOM = str(Path(gpufleet.providers.__file__).parent)
POINTS = 24
"""How many of the lines are tried; spread evenly."""


def lines_of(action: Callable[[], Any]) -> int:
    """How many lines of the provider's code an action runs through."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        count += event == "line" and frame.f_code.co_filename.startswith(ROOM)
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
            if event == "line" and frame.f_code.co_filename.startswith(ROOM):
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


def test_a_create_killed_at_any_line_is_done_or_not_done_and_never_loses_a_process(mock: Place) -> None:
    rent(mock.open(), "gf-test-warm-up")
    total = lines_of(lambda: rent(mock.open(), "gf-test-count"))
    outcomes = set()
    for line in range(1, total, max(1, total // POINTS)):
        key = f"gf-test-{line}-k"
        assert killed_at(line, lambda key=key: rent(mock.open(), key))
        made = mock.open().inventory().named(key)
        outcomes.add(len(made))
        assert eventually(lambda: tracked(mock) == roots_with_processes(mock))
        assert {line.key for line in billing.read(market_of(mock))} == {
            i.name for i in mock.open().inventory().instances
        }
        for instance in mock.open().inventory().instances:
            mock.open().terminate(instance.instance_id)
            in_state(mock.open(), instance.instance_id, InstanceState.TERMINATED)
        assert control.running(market_of(mock)) == []
    assert outcomes == {0, 1}
    assert all(line.ended for line in billing.read(market_of(mock)))


def test_a_terminate_killed_at_any_line_can_be_repeated_and_is_billed_once(mock: Place) -> None:
    def end(key: str) -> None:
        provider = mock.open()
        (instance,) = provider.inventory().named(key)
        provider.terminate(instance.instance_id)

    rent(mock.open(), "gf-test-count")
    total = lines_of(lambda: end("gf-test-count"))
    for line in range(1, total, max(1, total // POINTS)):
        key = f"gf-test-{line}-k"
        made = rent(mock.open(), key)
        killed_at(line, lambda key=key: end(key))
        mock.open().terminate(made.instance_id)
        in_state(mock.open(), made.instance_id, InstanceState.TERMINATED)
        assert [c.ended is not None for c in billing.read(market_of(mock)) if c.key == key] == [True]
    assert eventually(lambda: control.running(market_of(mock)) == [])


def test_stock_and_host_slots_come_back_after_kills(mock: Place) -> None:
    before = mock.open().offers(OfferQuery())
    rent(mock.open(), "gf-test-warm-up")
    for line in (40, 120, 200, 280):
        killed_at(line, lambda line=line: rent(mock.open(), f"gf-test-{line}-s"))
    control.stop_all(market_of(mock))
    assert mock.open().offers(OfferQuery()) == before
