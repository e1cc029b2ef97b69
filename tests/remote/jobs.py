"""Small jobs for the tests, made from playbooks as the real ones are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from gpufleet.domain.jobs import JobEvent
from gpufleet.playbook.compile import compile_job
from gpufleet.playbook.job import CompiledJob
from gpufleet.playbook.load import load_file
from gpufleet.remote.jobs import run_job
from gpufleet.remote.machine import Machine


def make_job(
    folder: Path,
    *steps: Mapping[str, Any],
    name: str = "job",
    inputs: Mapping[str, Any] | None = None,
    values: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    **playbook: Any,
) -> CompiledJob:
    path = folder / "playbook.yaml"
    content = {"name": "test", "summary": "a test", "inputs": dict(inputs or {}), "steps": [*steps], **playbook}
    path.write_text(yaml.safe_dump(content))
    common = {"GF_WORK": str(folder / "work"), "GF_FLEET": "fleet", "GF_NODE": "decode/0"}
    return compile_job(load_file(path), job_name=name, values={**common, **(values or {})}, secrets=secrets)


def step(run: str, name: str = "one", **more: Any) -> dict[str, Any]:
    return {"name": name, "run": run, **more}


def run(machine: Machine, job: CompiledJob, **options: Any) -> list[JobEvent]:
    events: list[JobEvent] = []
    options = {"stop": threading.Event(), "deadline_seconds": 60, "on_event": events.append, **options}
    run_job(machine, job, **options)
    return events


def kinds(events: list[JobEvent]) -> list[str]:
    return [str(event.kind) for event in events]


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
