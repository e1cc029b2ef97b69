"""This machine, through the same protocol as a node: for the router when it runs here."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpufleet.remote.errors import ConnectionLost
from gpufleet.remote.machine import Completed

_POLL_MILLISECONDS = 250
_CHUNK = 65_536
_INHERITED = frozenset({"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "TZ"})
"""As a login on a node would have it: what we start lives on, and need not carry the caller's secrets with it."""


class LocalMachine:
    """A `gpufleet.remote.machine.Machine` that runs commands here, without SSH."""

    def __init__(self, workdir: Path, *, name: str = "this machine") -> None:
        self._workdir = str(workdir.absolute())
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    @property
    def workdir(self) -> str:
        return self._workdir

    def run(self, command: str, *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        """See `Machine.run`."""
        with _started(command, stderr=subprocess.PIPE) as process:
            try:
                out, err = process.communicate(stdin, timeout)
            except subprocess.TimeoutExpired as error:
                raise ConnectionLost(f"{self._name}: a command did not end within {timeout:g} s") from error
            code = process.returncode
        return Completed(code if code >= 0 else 128 - code, _text(out), _text(err))

    def stream(self, command: str, *, stdin: bytes = b"", until: Callable[[], bool] | None = None) -> Iterator[bytes]:
        """See `Machine.stream`."""
        with _started(command, stderr=subprocess.DEVNULL) as process:
            threading.Thread(target=_feed, args=(process, stdin), daemon=True, name="local-stdin").start()
            assert process.stdout is not None
            fd = process.stdout.fileno()
            poller = select.poll()
            poller.register(fd, select.POLLIN)
            while until is None or not until():
                if not poller.poll(_POLL_MILLISECONDS):
                    continue
                chunk = os.read(fd, _CHUNK)
                if not chunk:
                    return
                yield chunk

    def close(self) -> None:
        """Nothing is kept open."""


@contextmanager
def _started(command: str, *, stderr: int) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a session of its own, which is ended with it; what it detached with setsid lives on."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={name: value for name, value in os.environ.items() if name in _INHERITED},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with suppress(OSError, ValueError):
                    pipe.close()


def _feed(process: subprocess.Popen[bytes], stdin: bytes) -> None:
    assert process.stdin is not None
    with suppress(OSError, ValueError):  # the command may end without reading all of it
        process.stdin.write(stdin)
        process.stdin.close()


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")
