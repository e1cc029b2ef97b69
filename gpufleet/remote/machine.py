"""A machine that commands can be run on: over SSH, or this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Completed:
    """A finished command."""

    exit_code: int
    stdout: str
    stderr: str


class Machine(Protocol):
    """One host and one open connection to it. Methods may be called from several threads at once."""

    @property
    def name(self) -> str:
        """For messages: ``decode/0`` or ``this machine``."""
        ...

    @property
    def workdir(self) -> str:
        """Where gpufleet keeps its files there; absolute."""
        ...

    def run(self, command: str, *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        """Run a shell command line to its end.

        Raises:
            ConnectionLost: the link broke or ``timeout`` seconds passed.
        """
        ...

    def stream(self, command: str, *, stdin: bytes = b"", until: Callable[[], bool] | None = None) -> Iterator[bytes]:
        """Run a shell command line and yield its stdout in chunks as they come, until it ends.

        ``until`` is asked a few times per second; once true, the stream ends without an error.

        Raises:
            ConnectionLost: the link broke.
        """
        ...

    def close(self) -> None: ...
