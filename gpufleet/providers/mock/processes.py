"""The processes of the mock's nodes: start one, find all of one, end all of one.

Every process of a node carries ``TWIN_ROOT=<its root directory>`` in its environment; that is how they are found,
however they were started, and it is the only thing by which a process is ever ended here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import gpufleet
from gpufleet.providers.errors import ProtocolError

_PROC = Path("/proc")
_MARK = b"TWIN_ROOT="
_KILL_DEADLINE_S = 5.0

_started: list[subprocess.Popen[bytes]] = []
"""Nodes outlive us, so nobody waits for them; kept only to reap those that end while we run."""


def keep_running(command: Sequence[str], root: Path) -> None:
    """Start a node's process, detached from this one, unless it runs; its output goes to ``<root>/node.log``.

    The node inherits a kernel lock on ``<root>/node.lock`` and holds it as long as it lives. So whoever asks next knows
    whether it runs, even when the starter was killed right after the start.

    The environment is a fresh one: nothing of the caller's (its secrets above all) reaches the node.

    Raises:
        ProtocolError: it cannot be started.
    """
    reap()
    try:
        lock = os.open(root / "node.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _start(command, root, lock)
        except BlockingIOError:
            return
        finally:
            os.close(lock)
    except OSError as error:
        raise ProtocolError(f"the node's program cannot be started: {error.strerror}", where=str(root)) from error


def reap() -> None:
    """Collect the exit status of nodes that this process started and that have ended."""
    _started[:] = [process for process in _started if process.poll() is None]


def by_root(roots: Collection[str]) -> dict[str, list[int]]:
    """Living processes of each of these root directories."""
    marks = {_MARK + root.encode(): root for root in roots}
    found: dict[str, list[int]] = {}
    for entry in os.scandir(_PROC) if marks else ():
        if not entry.name.isdecimal():
            continue
        root = _root_of(int(entry.name), marks)
        if root is not None:
            found.setdefault(root, []).append(int(entry.name))
    return found


def end(roots: Collection[str]) -> set[str]:
    """SIGKILL every process of these root directories, again and again until none is left.

    Returns the roots that are surely empty (all of them, unless the kernel cannot end a process within 5 s).
    """
    deadline = time.monotonic() + _KILL_DEADLINE_S
    left = by_root(roots)
    while left and time.monotonic() < deadline:
        for pid in (pid for pids in left.values() for pid in pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reap()
        time.sleep(0.005)
        left = by_root(roots)
    return set(roots) - set(left)


def _start(command: Sequence[str], root: Path, lock: int) -> None:
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(root),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(Path(gpufleet.__file__).resolve().parent.parent),
        "TWIN_ROOT": str(root),
    }
    with (root / "node.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, str(root)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=root,
            env=environment,
            start_new_session=True,
            pass_fds=(lock,),
        )
    _started.append(process)


def _root_of(pid: int, marks: dict[bytes, str]) -> str | None:
    try:
        variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((marks[variable] for variable in variables if variable in marks), None)
