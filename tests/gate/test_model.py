"""The protocol's model: exclusion and no deadlock for three ranks, two requests and a crash of the gate."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[2] / "models" / "check.sh"
pytestmark = pytest.mark.skipif(not shutil.which("spin") or not shutil.which("gcc"), reason="needs spin and gcc")


@pytest.mark.parametrize("variant", ["gate", "NO_TURNS", "FORGET_WRITERS", "NO_REVOKE", "NO_SETTLE"])
def test_the_gate_holds_and_each_weaker_one_does_not(variant: str) -> None:
    ended = subprocess.run(["sh", str(CHECK), variant], capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
