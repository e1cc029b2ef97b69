"""Executables in ``hooks/`` beside the fleet file, run when something happens: the user's own programs.

They have the user's environment and `GPUFLEET_*` variables, never a secret that gpufleet read; what they print goes to
stderr. docs/hooks.md says when each runs.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from enum import StrEnum
from pathlib import Path

from gpufleet.domain.progress import Progress, ProgressState
from gpufleet.engine.session import Session
from gpufleet.errors import GpufleetError

FOLDER = "hooks"
SECONDS = 60.0
"""A hook's deadline: a node is paid for while it runs."""
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Hook(StrEnum):
    """When a hook runs."""

    PRE_UP = "pre-up"
    """Before anything is rented or ended; its failure stops the run."""
    POST_UP = "post-up"
    PRE_DOWN = "pre-down"
    """Before anything ends; its failure stops the run, but not an end that a ttl or a budget asks for."""
    POST_DOWN = "post-down"
    NODE_LOST = "node-lost"
    """A node is about to be replaced that the provider took back or that died."""
    BUDGET = "budget"
    """80 % or more of a limit are spent."""


def run_hook(session: Session, hook: Hook, **facts: str) -> None:
    """Run a hook where there is one.

    Args:
        facts: further variables: ``nodes="decode/0"`` becomes ``GPUFLEET_NODES``.

    Raises:
        GpufleetError: it is not safe to run, failed, or took too long.
    """
    path = session.path.absolute().parent / FOLDER / hook
    if not path.exists():
        return
    _check(path)
    session.sink(Progress(None, "hook", message=str(hook)))
    given = {"hook": str(hook), "fleet": session.fleet.name, "file": str(session.path.absolute()), **facts}
    _run(path, {f"GPUFLEET_{name.upper()}": value for name, value in given.items()})


def try_hook(session: Session, hook: Hook, **facts: str) -> None:
    """The same where nothing depends on it: a failure is shown, and that is all."""
    try:
        run_hook(session, hook, **facts)
    except GpufleetError as failure:
        session.sink(Progress(None, "hook", ProgressState.FAILED, message=failure.message))


def _check(path: Path) -> None:
    """Whoever may write it, or swap it in its folder, would run as this user."""
    for place in (path, path.parent):
        found = place.stat()
        if found.st_uid not in {os.getuid(), 0} or found.st_mode & _OTHERS_MAY_WRITE:
            raise GpufleetError(f"others can write {place}, so it is not run", hint=f"chmod go-w {place}")
    if not path.is_file() or not os.access(path, os.X_OK):
        raise GpufleetError(f"the hook {path} is not executable", hint=f"chmod +x {path}, or remove it")


def _run(path: Path, variables: dict[str, str]) -> None:
    process = subprocess.Popen(
        [str(path)],
        cwd=path.parent.parent,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=sys.__stderr__,
        start_new_session=True,
    )
    try:
        code = process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise GpufleetError(f"the hook {path.name} was not done after {SECONDS:.0f} s", where=str(path)) from None
    if code:
        raise GpufleetError(f"the hook {path.name} failed (exit {code})", where=str(path))
