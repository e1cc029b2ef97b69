"""Stopping a run: what exists is told with its price and the two next commands, and the next run goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import _network
from tests.e2e.small import assert_down_and_even, fault, running, small
from tests.e2e.world import World, eventually


@pytest.fixture
def calm(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[World]:
    """A small fleet on a market slow enough to be stopped at any phase."""
    options = getattr(request, "param", {})
    faults = options.get("faults", [])
    with small(
        tmp_path_factory.mktemp("w"), _network(request.node.nodeid), *faults, time_scale=options.get("scale", 2000)
    ) as made:
        yield made


def _stop_at(made: World, mark: str, number: int, *command: str) -> tuple[int, str]:
    """Send a signal when the progress names ``mark``; returns the exit code and all of stderr."""
    process = made.start(*command)
    assert process.stderr is not None
    threading.Thread(target=process.stdout.read, daemon=True).start()  # type: ignore[union-attr]
    said = ""
    for line in process.stderr:
        said += line
        if mark and mark in line:
            os.kill(process.pid, number)
            mark = ""
    return process.wait(), said


@pytest.mark.report("dstack 2068")
@pytest.mark.parametrize(
    ("mark", "number"),
    [
        ("rent", signal.SIGINT),
        pytest.param("boot", signal.SIGTERM, marks=pytest.mark.slow),
        ("image", signal.SIGHUP),
        ("serve", signal.SIGINT),
        pytest.param("router", signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_up_stopped_at(calm: World, mark: str, number: int) -> None:
    code, said = _stop_at(calm, f"/0 {mark}" if mark != "router" else mark, number, "up", "--yes")
    assert code == 130, said
    assert "Traceback" not in said
    before = {charge.instance_id for charge in running(calm)}
    if before:
        assert ("2 rentals running for $56.00/h" if len(before) == 2 else "1 rental running for $28.00/h") in said, said
        assert "gpufleet up fleet.yaml (continue) or gpufleet down fleet.yaml (remove everything)" in said
    else:
        assert mark == "rent"
        assert "interrupted; nothing is rented" in said
    assert {n["instance_id"] for n in calm.json("status")["nodes"]} == before
    calm.ok("up", "--yes")
    assert before <= {charge.instance_id for charge in running(calm)}
    assert len(running(calm)) == 2
    assert_down_and_even(calm)


@pytest.mark.slow
@pytest.mark.parametrize("mark", ["terminate", "confirm"])
def test_down_stopped_at(calm: World, mark: str) -> None:
    calm.ok("up", "--yes")
    code, said = _stop_at(calm, mark, signal.SIGINT, "down", "--yes")
    assert code in {0, 130}, said
    assert_down_and_even(calm)


@pytest.mark.report("dstack 138")
@pytest.mark.parametrize(
    "calm", [{"faults": [fault("create", "hang", "prefill/0", after=4000)], "scale": 2000}], indirect=True
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_create_call_under_way_is_awaited_and_its_answer_stored(calm: World, number: int) -> None:
    process = calm.start("up", "--yes")
    eventually(lambda: {c.node for c in running(calm)} >= {"prefill/0"}, what="the rental")
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "rental" in said
    assert {n["instance_id"] for n in calm.json("status", "--offline")["nodes"]} == {
        charge.instance_id for charge in running(calm)
    }
    assert_down_and_even(calm)


@pytest.mark.slow
@pytest.mark.parametrize(
    "calm", [{"faults": [fault("create", "hang", "prefill/0", after=50000)], "scale": 2000}], indirect=True
)
def test_the_second_ctrl_c_waits_for_nothing_and_the_call_is_looked_up_later(calm: World) -> None:
    process = calm.start("up", "--yes")
    eventually(lambda: {c.node for c in running(calm)} >= {"prefill/0"}, what="the rental")
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=15)
    assert process.returncode == 130
    assert "1 create call of unknown outcome for up to $28.00/h" in said
    assert_down_and_even(calm)


@pytest.mark.slow
@pytest.mark.parametrize("calm", [{"scale": 60}], indirect=True)
def test_a_second_up_and_a_down_say_who_holds_the_fleet(calm: World) -> None:
    process = calm.start("up", "--yes")
    eventually(lambda: running(calm), what="a rental")
    for command in ("up", "down"):
        done = calm.run(command, "--yes")
        assert done.returncode == 9, done.stderr
        assert f"held by `gpufleet up` (process {process.pid}" in done.stderr
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert_down_and_even(calm)


@pytest.mark.slow
def test_a_run_that_ignores_hangups_goes_on(calm: World) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        code, said = _stop_at(calm, "boot", signal.SIGHUP, "up", "--yes")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert code == 0, said
    assert_down_and_even(calm)


@pytest.mark.slow
def test_nobody_reading_the_progress_stops_nothing(calm: World) -> None:
    process = calm.start("up", "--yes")
    assert process.stderr is not None
    next(line for line in process.stderr if "boot" in line)
    process.stderr.close()
    assert process.stdout is not None
    process.stdout.read()
    assert process.wait(timeout=120) == 0
    assert len(running(calm)) == 2
    assert_down_and_even(calm)
