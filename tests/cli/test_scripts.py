"""The scripts that set up, check and show the project are linted, and the demo never leaves a fleet behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHELLCHECK = Path(sys.executable).with_name("shellcheck")


@pytest.mark.parametrize("script", [".ci/run", ".ci/setup", ".ci/dist-check", "examples/demo.sh"])
def test_a_script_is_executable_text_that_shellcheck_accepts(script: str) -> None:
    done = subprocess.run([SHELLCHECK, ROOT / script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def demo(tmp_path: Path, gpufleet: str) -> tuple[int, list[str]]:
    """Run a copy of the demo with a gpufleet that writes down what it was called with."""
    (tmp_path / "examples").mkdir()
    (tmp_path / "bin").mkdir()
    script = tmp_path / "examples/demo.sh"
    script.write_text((ROOT / "examples/demo.sh").read_text(encoding="utf-8"), encoding="utf-8")
    stand_in = tmp_path / "bin/gpufleet"
    stand_in.write_text(f'#!/bin/sh\necho "$1" >> "{tmp_path}/calls"\n{gpufleet}\n', encoding="utf-8")
    stand_in.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    done = subprocess.run(["sh", script], env=env, capture_output=True, timeout=60, check=False)
    return done.returncode, (tmp_path / "calls").read_text(encoding="utf-8").split()


def test_the_demo_runs_a_whole_life_of_a_fleet(tmp_path: Path) -> None:
    code, calls = demo(tmp_path, "exit 0")
    assert (code, calls) == (0, ["validate", "plan", "up", "ask", "ask", "status", "down"])


def test_a_demo_that_fails_takes_the_fleet_down_and_keeps_the_exit_code(tmp_path: Path) -> None:
    code, calls = demo(tmp_path, '[ "$1" != ask ] || exit 8')
    assert (code, calls) == (8, ["validate", "plan", "up", "ask", "down"])
