"""What the commands share that talk to the engine: an open session, its warnings, questions, and how a stop is told."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gpufleet.domain.nodes import NodeName
from gpufleet.errors import Declined, Interrupted, UsageError

if TYPE_CHECKING:
    from gpufleet.engine.session import Session
    from gpufleet.reporting.live import LiveView
    from gpufleet.spec.model import Fleet
    from gpufleet.spec.problems import Problem


@contextmanager
def opened(path: Path, *, recover: bool = False) -> Iterator[Session]:
    """The fleet's session, for commands that show no progress. For ``recover`` see `open_session`."""
    from gpufleet.engine.session import open_session

    with open_session(path, recover=recover) as session:
        warn(session.loaded.warnings)
        yield session


@contextmanager
def watched(path: Path, *, recover: bool = False) -> Iterator[tuple[Session, LiveView]]:
    """The fleet's session and the view that shows its progress on stderr once it is entered.

    Until the end a stop by Ctrl-C, SIGTERM or SIGHUP tells what exists, its price per hour, and the next two commands.
    """
    from gpufleet.engine.session import open_session
    from gpufleet.engine.signals import signals_interrupt
    from gpufleet.reporting.console import stderr
    from gpufleet.reporting.live import LiveView

    view = LiveView(stderr())
    with open_session(path, sink=view.sink, recover=recover) as session, signals_interrupt():
        warn(session.loaded.warnings)
        with _told_what_exists(session):
            yield session, view


@contextmanager
def _told_what_exists(session: Session) -> Iterator[None]:
    from gpufleet.engine import api
    from gpufleet.reporting.interrupt import interruption

    try:
        yield
    except (KeyboardInterrupt, Interrupted) as stop:
        unclear = session.store.open_intents(session.fleet.name)
        raise interruption(
            api.status(session, live=False).bill,
            str(session.path),
            unclear=len(unclear),
            unclear_usd_per_hour=session.store.pending_usd_per_hour(session.fleet.name),
        ) from stop


def warn(warnings: Sequence[Problem]) -> None:
    """One line each on stderr, and what to do about it."""
    for warning in warnings:
        at = f" (line {warning.line})" if warning.line else ""
        typer.echo(f"warning: {warning.message}{at}" + (f"; {warning.hint}" if warning.hint else ""), err=True)


def confirm(question: str, *, yes: bool, consequence: str, command: str) -> None:
    """Ask on stderr unless ``--yes`` was given.

    Args:
        question: what is asked.
        consequence: what the command would do, for the refusal when there is nobody to ask.
        command: the same command with ``--yes``.

    Raises:
        Declined: on no, and when stdin is no terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise Declined(f"{consequence}, and there is no terminal to ask on", hint=command)
    if not typer.confirm(question, err=True):
        raise Declined("declined; nothing was changed")


def node_of(fleet: Fleet, text: str) -> NodeName:
    """A node of the fleet file.

    Raises:
        UsageError: when there is none of that name; says which there are.
    """
    nodes = fleet.nodes()
    if text in map(str, nodes):
        return NodeName.parse(text)
    raise unknown_node(text, [str(node) for node in nodes])


def nodes_of(fleet: Fleet, target: str) -> list[NodeName]:
    """The nodes that ``all``, a pool's name or a node's name stand for.

    Raises:
        UsageError: when there are none.
    """
    nodes = fleet.nodes()
    if target == "all":
        return nodes
    if target in fleet.pools:
        return [node for node in nodes if node.pool == target]
    if "/" in target and target in map(str, nodes):
        return [NodeName.parse(target)]
    raise unknown_node(target, [*map(str, nodes), *fleet.pools, "all"])


def unknown_node(text: str, known: list[str]) -> UsageError:
    """The error for a node or pool that the fleet file does not have."""
    close = get_close_matches(text, known, n=1)
    hint = (
        f"did you mean {close[0]}?"
        if close
        else f"this fleet has {', '.join(known[:12])}" + ", ..." * (len(known) > 12)
    )
    return UsageError(f"there is no '{text}' in this fleet", hint=hint)
