"""Running a compiled job on a machine: started detached, followed by its event log, joined again after a break."""

from __future__ import annotations

import json
import random
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Protocol

from gpufleet.domain.jobs import JobEvent, JobEventKind
from gpufleet.domain.text import visible
from gpufleet.errors import Interrupted, UsageError
from gpufleet.remote.errors import ConnectionLost, JobFailed
from gpufleet.remote.machine import Machine

EventSink = Callable[[JobEvent], None]

_MAX_LAUNCHES_IN_VAIN = 5
_BACK_OFF_SECONDS = (0.3, 1, 2, 5, 10)
_JOB_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


class Job(Protocol):
    """What is to be run: `gpufleet.playbook.job.CompiledJob`, of which this room knows no more than this."""

    @property
    def name(self) -> str: ...
    @property
    def script(self) -> str: ...
    @property
    def environment(self) -> str: ...
    @property
    def digest(self) -> str: ...


def run_job(
    machine: Machine,
    job: Job,
    *,
    on_event: EventSink,
    stop: threading.Event,
    reconnect: Callable[[], Machine] | None = None,
    deadline_seconds: float,
) -> tuple[JobEvent, ...]:
    """Run a job to its end and return its events, those of PROGRESS left out.

    One command on the node uploads, starts and follows it. A run of the same digest that is under way is joined from
    its first event; one of another digest is stopped first. The job does not depend on us: when the connection breaks
    it goes on, and ``reconnect`` (which should try once and raise ConnectionLost) gives the machine to continue with,
    at the byte where the log broke off. Each event reaches ``on_event`` once, in order, in this thread.

    Raises:
        JobFailed: a step failed, the job was killed, or ``deadline_seconds`` passed (the job itself then goes on).
        ConnectionLost: the connection broke and there is no ``reconnect``.
        Interrupted: ``stop`` was set; the job goes on, and the next call joins it.
    """
    patience = _Patience(job.name, stop, deadline_seconds, time.monotonic() + deadline_seconds)
    follower = _Follower(job, on_event)
    in_vain = 0
    while not follower.ended:
        before = follower.progress
        try:
            follower.follow(machine, patience.is_over)
            lost = None
        except ConnectionLost as error:
            lost = error
        if follower.ended:
            break
        patience.check(machine)
        in_vain = 0 if follower.progress != before else in_vain + 1
        if lost and reconnect is None:
            raise lost
        if not lost and in_vain >= _MAX_LAUNCHES_IN_VAIN:
            raise ConnectionLost(f"{machine.name}: what follows job '{job.name}' ends at once", where=machine.name)
        patience.wait(in_vain)
        if lost and reconnect:
            machine = _reconnected(machine, reconnect, patience)
    return follower.result(machine)


def tail_job_log(
    machine: Machine,
    job_name: str,
    *,
    follow: bool = False,
    lines: int = 200,
    until: Callable[[], bool] | None = None,
) -> Iterator[bytes]:
    """The output of a job's steps: the last ``lines``, and what is added to it when ``follow`` is set.

    Raises:
        UsageError: that is not a job's name.
        ConnectionLost: the connection broke.
    """
    log = shlex.quote(f"{job_directory(machine, job_name)}/log")
    missing = shlex.quote(f"job {job_name} has written no log on this node")
    flags = "-F --pid=$PPID" if follow else ""
    return machine.stream(f"if [ -e {log} ]; then tail -n {lines} {flags} {log}; else echo {missing}; fi", until=until)


def job_names(machine: Machine) -> tuple[str, ...]:
    """The jobs that have been started on this machine, the latest first.

    Raises:
        ConnectionLost: the connection broke.
    """
    listing = machine.run(f"ls -t {shlex.quote(machine.workdir + '/jobs')} 2>/dev/null", timeout=30)
    return tuple(listing.stdout.split())


def job_directory(machine: Machine, job_name: str) -> str:
    """Where a job keeps its files on the machine: ``log``, ``events`` and ``done/``."""
    if not _JOB_NAME.fullmatch(job_name):
        raise UsageError(f"'{job_name}' is not the name of a job")
    return f"{machine.workdir}/jobs/{job_name}"


class _Follower:
    """Reads one job's event log over as many connections as it takes."""

    def __init__(self, job: Job, on_event: EventSink) -> None:
        self._job = job
        self._on_event = on_event
        self._script = job.script.encode()
        self._payload = self._script + job.environment.encode()
        self._run = ""
        self._offset = 0
        self._last_failure: JobEvent | None = None
        self._events: list[JobEvent] = []
        self.ended = False
        """The job's last event was seen, or the node says that there will be none."""

    @property
    def progress(self) -> tuple[str, int]:
        """Changes whenever something new was read."""
        return self._run, self._offset

    def follow(self, machine: Machine, until: Callable[[], bool]) -> None:
        """Launch or join, and read until the end, a break, or ``until``."""
        buffer = b""
        started = False
        for chunk in machine.stream(self._command(machine), stdin=self._payload, until=until):
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                if started:
                    self._read(line)
                else:
                    started = self._read_header(line, machine)
                if self.ended:
                    return

    def result(self, machine: Machine) -> tuple[JobEvent, ...]:
        """The events of a job that went well; raises JobFailed for any other."""
        if self._events and self._events[-1].kind is JobEventKind.JOB_DONE:
            return tuple(self._events)
        log = f"{job_directory(machine, self._job.name)}/log"
        raise JobFailed(
            f"{machine.name}: {self._why()}",
            where=f"{machine.name}, log {log}",
            hint="see the whole log with: gpufleet logs " + machine.name,
        )

    def _command(self, machine: Machine) -> str:
        arguments = [
            job_directory(machine, self._job.name),
            self._job.digest,
            str(len(self._script)),
            str(len(self._payload)),
            self._run,
            str(self._offset),
        ]
        return f"exec sh -c {shlex.quote(_launcher())} gpufleet-job {shlex.join(arguments)}"

    def _read_header(self, line: bytes, machine: Machine) -> bool:
        """Lines before the first of ours come from the login shell's own start-up files and are skipped."""
        word, _, rest = line.decode("utf-8", errors="replace").partition(" ")
        if word == "gf-error":
            raise JobFailed(f"{machine.name}: job '{self._job.name}' cannot be started: {rest}", where=machine.name)
        if word != "gf-run":
            return False
        if rest != self._run:
            self._run, self._offset = rest, 0
        return True

    def _read(self, line: bytes) -> None:
        if line == b"gf-end":
            self.ended = True
            return
        self._offset += len(line) + 1
        event = _parse(line)
        if event is None:
            return
        self._on_event(event)
        if event.kind is not JobEventKind.PROGRESS:
            self._events.append(event)
        if event.kind is JobEventKind.STEP_FAILED:
            self._last_failure = event
        self.ended = event.kind in {JobEventKind.JOB_DONE, JobEventKind.JOB_FAILED}

    def _why(self) -> str:
        job = f"job '{self._job.name}'"
        if self._last_failure:
            failure = self._last_failure
            code = failure.data.get("exit_code", "?")
            return f"step '{failure.step}' of {job} failed (exit {code}): {failure.message or 'it printed nothing'}"
        if self._events and self._events[-1].kind is JobEventKind.JOB_FAILED:
            return f"{job} failed: {self._events[-1].message}"
        return f"{job} ended without saying how: it was killed, or the disk is full"


def _parse(line: bytes) -> JobEvent | None:
    """An event, or None for a line that is not one (a torn write, or a kind of a later version).

    What a node says ends up in terminals, the ledger and the lock file, so nothing in it may steer a terminal.
    """
    try:
        raw: Any = json.loads(line.decode("utf-8", errors="replace"), strict=False)
        percent = raw.get("percent")
        return JobEvent(
            kind=JobEventKind(raw["kind"]),
            job=str(raw["job"]),
            step=visible(str(raw.get("step", ""))),
            percent=None if percent is None else min(100.0, max(0.0, float(percent))),
            message=visible(str(raw.get("message", ""))),
            at=float(raw.get("at", 0)),
            data={visible(str(key)): visible(str(value)) for key, value in raw.get("data", {}).items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


@dataclass(frozen=True)
class _Patience:
    """How long one call waits, and what it says when it no longer does."""

    job_name: str
    stop: threading.Event
    seconds: float
    deadline: float

    def is_over(self) -> bool:
        return self.stop.is_set() or time.monotonic() > self.deadline

    def check(self, machine: Machine) -> None:
        if self.stop.is_set():
            raise Interrupted(f"{machine.name}: stopped waiting for job '{self.job_name}', which goes on there")
        if self.is_over():
            raise JobFailed(
                f"{machine.name}: job '{self.job_name}' is not done after {self.seconds:.0f} s; it goes on there",
                where=machine.name,
                hint=f"watch it with: gpufleet logs -f {machine.name}",
            )

    def wait(self, tries: int) -> None:
        """Back off, jittered so that many nodes do not come back in step."""
        seconds = _BACK_OFF_SECONDS[min(tries, len(_BACK_OFF_SECONDS) - 1)] * random.uniform(0.5, 1)  # noqa: S311
        self.stop.wait(max(0.0, min(seconds, self.deadline - time.monotonic())))


def _reconnected(machine: Machine, reconnect: Callable[[], Machine], patience: _Patience) -> Machine:
    tries = 0
    while True:
        patience.check(machine)
        try:
            return reconnect()
        except ConnectionLost:
            tries += 1
            patience.wait(tries)


@cache
def _launcher() -> str:
    """The node's part, without the comments, which need not travel."""
    text = resources.files("gpufleet.remote").joinpath("launcher.sh").read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
