"""``gpufleet ... | head``: when whoever reads our output goes away, stop quietly."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class ReaderGone(Exception):
    """Nobody reads stdout any more."""


@contextmanager
def quiet_when_the_reader_goes() -> Iterator[None]:
    """Turn a broken stdout into `ReaderGone`; any other broken pipe (to a node, to a program) stays the error it is."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_has_gone():
            raise
        # Else the interpreter flushes into the closed pipe once more on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise ReaderGone from None


def _reader_has_gone() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
