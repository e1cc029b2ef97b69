"""Run gpufleet as a user does: a process of its own, no terminal, its output apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEPT = ("PATH", "HOME", "LANG", "TMPDIR")


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """stdout, which must be one JSON document and nothing else."""
        return json.loads(self.out)


def gpufleet(*words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, stdin: str = "") -> Result:
    base = {name: os.environ[name] for name in KEPT if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-m", "gpufleet", *words],
        cwd=cwd,
        env={**base, "COLUMNS": "80", **(env or {})},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)
