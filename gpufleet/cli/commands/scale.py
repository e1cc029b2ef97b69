"""``gpufleet scale``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpufleet.cli.commands.status import show_status
from gpufleet.cli.commands.up import agree
from gpufleet.cli.options import (
    DebugOption,
    FileOption,
    OutputFormat,
    OutputOption,
    WordsArgument,
    YesOption,
    split_arguments,
)
from gpufleet.cli.work import watched
from gpufleet.errors import UsageError

if TYPE_CHECKING:
    from gpufleet.engine.session import Session
    from gpufleet.reporting.live import LiveView

USAGE = "[FLEET.yaml] POOL=COUNT..."


def command(
    words: WordsArgument = None,
    *,
    file: FileOption = None,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TEXT,
    _debug: DebugOption = False,
) -> None:
    """Run more or fewer nodes of a pool than the fleet file says.

    Shows what changes and what it costs, and asks, unless --yes. Nodes that leave finish their streams first. The
    counts hold until the schedule or the file gives that pool another one, or the fleet is taken down.

    Example: gpufleet scale decode=1 native=2
    """
    path, rest = split_arguments(words, file)
    counts = parse_counts(rest)
    with watched(path) as (session, view):
        scale(session, view, counts, output, yes=yes)


def scale(session: Session, view: LiveView, counts: dict[str, int], output: OutputFormat, *, yes: bool) -> None:
    """Show what other counts mean, have it agreed to, carry it out and show the fleet."""
    from gpufleet.engine import api

    plan = api.plan_scaled(session, counts)
    api.check(session)
    words = " ".join(f"{pool}={count}" for pool, count in counts.items())
    agree(session, plan, yes=yes, command=f"gpufleet scale {session.path} {words} --yes")
    view.quiet = not plan.changes
    with view:
        status = api.scale(session, plan)
    show_status(status, output)


def parse_counts(words: list[str]) -> dict[str, int]:
    """``["decode=1", "native=2"]``.

    Raises:
        UsageError: a word has another shape, or a pool comes twice.
    """
    counts: dict[str, int] = {}
    for word in words:
        match = re.fullmatch(r"([a-z][a-z0-9-]*)=([0-9]{1,3})", word)
        if not match or int(match[2]) > 512 or match[1] in counts:
            raise UsageError(f"'{word}' is not POOL=COUNT, a pool once and 0 to 512", hint=f"gpufleet scale {USAGE}")
        counts[match[1]] = int(match[2])
    if not counts:
        raise UsageError("scale takes at least one pool and its count", hint="gpufleet scale decode=1 native=2")
    return counts
