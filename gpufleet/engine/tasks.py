"""A task graph run by threads: a task starts when those it waits for are done.

A failed task fails those that wait for it and nothing else; all running tasks are awaited, then all failures are told
together. Tasks are blocking functions (SSH and provider calls); one thread each is cheap at fleet sizes.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from gpufleet.domain.nodes import NodeName
from gpufleet.errors import GpufleetError, Interrupted
from gpufleet.reporting.words import named

_NODE = re.compile(r"[^/\s]+/\d+")


@dataclass(frozen=True)
class Task:
    """One unit of work and what must be done before it."""

    name: str
    work: Callable[[], None]
    after: frozenset[str] = frozenset()
    once_over: frozenset[str] = frozenset()
    """It also waits until these have ended, or cannot start any more; how they ended does not matter to it."""


@dataclass
class TaskGraph:
    """Tasks by name. Names that a task waits for and that were never added count as done already."""

    tasks: dict[str, Task] = field(default_factory=dict)

    def add(
        self, name: str, work: Callable[[], None], after: Iterable[str] = (), *, once_over: Iterable[str] = ()
    ) -> str:
        """Add a task; returns its name."""
        if name in self.tasks:
            raise ValueError(f"task {name} is there already")
        self.tasks[name] = Task(name, work, frozenset(after), frozenset(once_over))
        return name

    def run(self, stop: threading.Event) -> dict[str, BaseException]:
        """Run everything; returns the failures by task name, root causes only (skipped followers are left out).

        Once ``stop`` is set no further task starts; running ones are expected to see it themselves.

        Raises:
            Interrupted: when ``stop`` was set before all tasks were done.
        """
        if not self.tasks:
            return {}
        waiting = dict(self.tasks)
        done: set[str] = set()
        failed: dict[str, BaseException] = {}
        running: dict[Future[None], str] = {}
        pool = ThreadPoolExecutor(max_workers=len(self.tasks), thread_name_prefix="task")
        try:
            while waiting or running:
                for task in self._startable(waiting, done, {*done, *failed}, stop):
                    running[pool.submit(task.work)] = waiting.pop(task.name).name
                if not running:
                    break
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    name = running.pop(future)
                    error = future.exception()
                    if error is None:
                        done.add(name)
                    else:
                        failed[name] = error
        finally:
            # All have ended by now, unless a second Ctrl-C came: then nobody waits for what still runs.
            pool.shutdown(wait=False, cancel_futures=True)
        if stop.is_set() and len(done) < len(self.tasks):
            raise Interrupted("interrupted")
        return failed

    def _startable(
        self, waiting: dict[str, Task], done: set[str], ended: set[str], stop: threading.Event
    ) -> list[Task]:
        if stop.is_set():
            return []
        over = ended | self._hopeless(waiting, ended - done)
        return [
            task
            for task in waiting.values()
            if all(name in done or name not in self.tasks for name in task.after)
            and all(name in over or name not in self.tasks for name in task.once_over)
        ]

    def _hopeless(self, waiting: dict[str, Task], failed: set[str]) -> set[str]:
        """Tasks that can never start, because one that they need has failed."""
        lost = set(failed)
        while more := {t.name for t in waiting.values() if t.name not in lost and t.after & lost}:
            lost |= more
        return lost


def raise_failures(failed: dict[str, BaseException]) -> None:
    """Raise the only failure as it is, or several of them as one error of the first one's kind that names them all."""
    if not failed:
        return
    errors = list(failed.values())
    for error in errors:
        if not isinstance(error, GpufleetError):
            raise error
    known = [error for error in errors if isinstance(error, GpufleetError)]
    first = known[0]
    if len(known) == 1:
        raise first
    raise type_of(first)(f"{len(known)} failures: {_told_once(known)}", hint=first.hint) from first


def _told_once(errors: Iterable[GpufleetError]) -> str:
    """``decode/0-1: no GPUs; prefill/0: unreachable``: what several places share is told once."""
    places: dict[str, list[str]] = {}
    for error in errors:
        place = (error.where or "").partition(", log ")[0]
        message = error.message.removeprefix(f"{place}: ").removeprefix(f"{place} ") if place else error.message
        places.setdefault(message, []).append(place)
    return "; ".join(": ".join(filter(None, [_together(at), message])) for message, at in places.items())


def _together(places: Iterable[str]) -> str:
    nodes = [place for place in places if _NODE.fullmatch(place)]
    others = dict.fromkeys(place for place in places if place and place not in nodes)
    return ", ".join(filter(None, [named(map(NodeName.parse, nodes)), *others]))


def type_of(error: GpufleetError) -> type[GpufleetError]:
    """The plain kind of an error: the nearest class that is built from a message alone and sets the exit code."""
    for kind in type(error).__mro__:
        if "exit_code" in vars(kind):
            return kind
    return GpufleetError
