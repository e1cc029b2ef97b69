from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.domain.jobs import JobEvent
from gpufleet.playbook.compile import compile_job
from gpufleet.playbook.load import load_file
from gpufleet.remote.errors import JobFailed
from gpufleet.remote.jobs import run_job
from gpufleet.remote.local import LocalMachine
from gpufleet.twin.layout import prepare_root

PLAYBOOKS = Path(__file__).parents[2] / "playbooks"
FAST = {"load_seconds": 0, "convert_seconds": 0, "download_gbps": 1e9, "pull_gbps": 1e9, "pip_seconds": 0}


class Twin:
    """A node whose docker, nvidia-smi, hf and the like are stand-ins; jobs run on it without SSH."""

    def __init__(self, root: Path, address: str, work: str = "work") -> None:
        self.root = root
        self.work = root / work
        self.address = address
        self.machine = LocalMachine(self.work)

    def describe(self, **facts: Any) -> None:
        spec = {"name": "node", "address": self.address, "time_scale": 1e6, "pace": FAST, "ram_gb": 2000, **facts}
        (self.root / "node.json").write_text(json.dumps(spec))
        prepare_root(self.root, spec)

    def run(self, playbook: str, *, secrets: dict[str, str] | None = None, **values: str) -> list[JobEvent]:
        common = {"GF_WORK": str(self.work), "GF_FLEET": "fleet", "GF_NODE": "decode/0"}
        job = compile_job(
            load_file(PLAYBOOKS / f"{playbook}.yaml"), job_name=playbook, values={**common, **values}, secrets=secrets
        )
        events: list[JobEvent] = []
        run_job(self.machine, job, on_event=events.append, stop=threading.Event(), deadline_seconds=120)
        return events


@pytest.fixture
def twin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Twin]:
    root = tmp_path / "node"
    root.mkdir()
    number = os.getpid() % 60_000
    node = Twin(root, f"127.68.{number // 250}.{number % 250 + 1}")
    node.describe()
    monkeypatch.setenv("PATH", f"{root}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("TWIN_ROOT", str(root))
    monkeypatch.setenv("HOME", str(root / "home"))
    yield node
    node.run("cleanup")


def finished(events: list[JobEvent]) -> dict[str, str]:
    """How each step ended: done, or why it was skipped."""
    ends = {"step-done": "done", "step-skipped": "skipped"}
    return {e.step: e.message or ends[e.kind] for e in events if e.kind in ends}


def timed(work: Callable[[], object]) -> float:
    """Seconds that ``work`` takes."""
    began = time.monotonic()
    work()
    return time.monotonic() - began


def killed(twin: Twin, after: float, work: Callable[[], object]) -> None:
    """Run a job and kill -9, so many seconds after its start, everything that it runs on the node."""
    timer = threading.Timer(after, lambda: [_kill(pid) for pid in _pids_of(twin)])
    timer.start()
    with contextlib.suppress(JobFailed):
        work()
    timer.join()


def _pids_of(twin: Twin) -> list[int]:
    mark = f"{twin.work}/".encode()
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in (process / "cmdline").read_bytes() + (process / "environ").read_bytes():
                    found.append(int(process.name))
    return found


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
