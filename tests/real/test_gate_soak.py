"""TileRT's real connector and control plane behind the gate, in short; the long run is `gate_soak.py` by hand.

Needs a Python 3.12 with what `gate_soak.py` lists, named by REAL_PYTHON.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SOAK = Path(__file__).with_name("gate_soak.py")
ROOT = SOAK.parents[2]
pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def python() -> str:
    """The interpreter."""
    named = os.environ.get("REAL_PYTHON")
    if not named:
        pytest.skip("REAL_PYTHON names no Python with tilert")
    return named


def soak(python: str, *argv: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([python, str(SOAK), *argv], capture_output=True, text=True, timeout=230, env=env, check=False)


def test_no_foreign_kv_comes_through_the_gate(python: str) -> None:
    done = soak(python, "--requests", "300")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FOREIGN" not in done.stdout
    assert "own KV" in done.stdout


def test_without_the_gate_it_does(python: str) -> None:
    done = soak(python, "--requests", "300", "--without")
    assert "FOREIGN KV" in done.stdout, done.stdout + done.stderr
