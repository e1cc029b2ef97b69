"""A fleet's whole life for CI: thresholds, reports, exit codes, and nothing left whatever stops it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gpufleet.providers.mock import billing
from tests.e2e.conftest import _network
from tests.e2e.small import fault, small
from tests.e2e.world import World

pytestmark = pytest.mark.spread


@pytest.fixture
def made(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[World]:
    with small(tmp_path_factory.mktemp("w"), _network(request.node.nodeid)) as world:
        yield world


def nothing_is_left(made: World) -> bool:
    return all(charge.ended is not None for charge in billing.read(made.market)) and made.processes() == []


def test_a_good_fleet_passes_is_gone_and_leaves_the_files_own_fleet_alone(made: World) -> None:
    report = made.json("smoke", "--tokens-per-s", "0.1", "--junit", "smoke.xml")
    assert [step["name"] for step in report["steps"]] == ["plan", "up", "channel batch", "down"]
    assert report["fleet"].startswith("test-")
    assert report["steps"][2]["measured"]["served_by"] == "native"
    assert report["exit_code"] == 0
    suite = ElementTree.parse(made.root / "smoke.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("4", "0")
    assert nothing_is_left(made)
    assert {charge.fleet for charge in billing.read(made.market)} == {report["fleet"]}
    assert [path.name for path in made.root.glob("*.yaml")] == ["fleet.yaml"]


def test_a_missed_threshold_fails_with_what_was_seen_and_is_taken_down(made: World) -> None:
    done = made.run("smoke", "--ttft-ms", "0.001", "--junit", "smoke.xml")
    assert done.returncode == 8
    assert "FAILED channel batch" in done.stdout
    assert "at most 0.001ms is asked for" in done.stdout
    assert "at most 0.001ms" in (made.root / "smoke.xml").read_text()
    assert nothing_is_left(made)


def test_a_dry_run_plans_and_rents_nothing(made: World) -> None:
    report = made.json("smoke", "--dry-run")
    assert [step["name"] for step in report["steps"]] == ["plan"]
    assert billing.read(made.market) == []


def test_a_fleet_that_cannot_be_had_says_so_by_its_code(made: World) -> None:
    made.fleet["budget"] = {"max_usd_per_hour": 1}
    made.write()
    done = made.run("smoke")
    assert done.returncode == 3
    assert "FAILED plan" in done.stdout
    assert billing.read(made.market) == []


def test_a_node_that_does_not_come_up_fails_the_run_and_is_taken_down(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    broken = [fault("boot", "bad-gpu", "native/0", times=9)]
    with small(tmp_path_factory.mktemp("w"), _network(request.node.nodeid), *broken) as made:
        done = made.run("smoke")
        assert done.returncode == 5
        assert "FAILED up" in done.stdout
        assert nothing_is_left(made)


_POINTS = ["rent", "boot", "connect", "check", "image", "weights", "serve", "cell", "router", "probe"]


@pytest.mark.parametrize(
    "mark", [m if m in {"rent", "serve"} else pytest.param(m, marks=pytest.mark.slow) for m in _POINTS]
)
def test_stopped_by_sigterm_at(made: World, mark: str) -> None:
    code, said, out = _stopped(made, mark, times=1)
    assert code == 130, said + out
    assert "ok     down" in out
    assert "Traceback" not in said
    assert nothing_is_left(made)


def test_signals_while_it_takes_down_do_not_stop_it(made: World) -> None:
    code, said, out = _stopped(made, "terminate", times=3)
    assert code == 0, said + out
    assert nothing_is_left(made)


def _stopped(made: World, mark: str, *, times: int) -> tuple[int, str, str]:
    """Send SIGTERM when the progress names ``mark``; returns the exit code, stderr and stdout."""
    process = made.start("smoke")
    assert process.stderr is not None
    assert process.stdout is not None
    out: list[str] = []
    reader = threading.Thread(target=lambda: out.append(process.stdout.read()))  # type: ignore[union-attr]
    reader.start()
    sent, said = 0, ""
    for line in process.stderr:
        said += line
        if not sent and f" {mark}" in line:
            for sent in range(1, times + 1):  # noqa: B007 - told below
                os.kill(process.pid, signal.SIGTERM)
                time.sleep(0.01)
    code = process.wait()
    reader.join()
    assert sent == times, said
    return code, said, out[0]


def test_the_example_workflow_is_one_that_github_knows() -> None:
    program = Path(sys.executable).with_name("check-jsonschema")
    workflow = Path(__file__).parents[2] / "examples/ci/github-actions.yml"
    words = [str(program), "--builtin-schema", "vendor.github-workflows", str(workflow)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
