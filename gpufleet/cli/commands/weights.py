"""``gpufleet weights``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from gpufleet.cli.options import DebugOption, FileOption, OutputFormat, OutputOption, WordsArgument, split_arguments
from gpufleet.cli.work import nodes_of, watched
from gpufleet.domain.nodes import Role
from gpufleet.errors import UsageError

if TYPE_CHECKING:
    from gpufleet.domain.nodes import NodeName
    from gpufleet.engine.session import Session
    from gpufleet.engine.weights import Doing

USAGE = "fetch|convert|verify|copy|pull|push [FLEET.yaml] [NODE|POOL]"


def command(
    words: WordsArgument = None,
    *,
    file: FileOption = None,
    output: OutputOption = OutputFormat.TEXT,
    _debug: DebugOption = False,
) -> None:
    """Verify, copy, pull or push the weights of rented nodes.

    up does what is needed by itself. By hand: fetch downloads the checkpoint (all nodes, unless one is named), convert
    brings it into TileRT's layout (the first decode node), verify compares every byte with the manifest and changes
    nothing (all decode nodes), copy hands the converted weights from node to node (all other decode nodes), pull and
    push move them from and to weights.store (the first decode node). Each continues where it was stopped.

    Example: gpufleet weights verify decode/1
    """
    from gpufleet.engine import api
    from gpufleet.engine.weights import Doing

    action, *rest = words or [""]
    if action not in set(Doing):
        raise UsageError(f"'{action}' is not something to do with weights", hint=f"gpufleet weights {USAGE}")
    doing = Doing(action)
    path, rest = split_arguments(rest, file)
    if len(rest) > 1:
        raise UsageError(f"weights {doing} takes one node or pool", hint=f"gpufleet weights {USAGE}")
    with watched(path) as (session, view):
        nodes = nodes_of(session.fleet, rest[0]) if rest else _usual(session, doing)
        with view:
            api.work_on_weights(session, doing, nodes)
    _say(doing, nodes, output)


def _usual(session: Session, doing: Doing) -> list[NodeName]:
    """The nodes that an action is for when none is named."""
    decode = session.fleet.nodes_of(Role.DECODE)
    if doing == "fetch":
        return session.fleet.nodes()
    if doing == "verify":
        return decode
    found = decode[1:] if doing == "copy" else decode[:1]
    if not found:
        raise UsageError(f"weights {doing} has no node to work on: {len(decode)} decode nodes in {session.path}")
    return found


def _say(doing: Doing, nodes: list[NodeName], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        from gpufleet.reporting.json import dumps

        typer.echo(dumps({"action": doing, "nodes": nodes}))
        return
    done = {"fetch": "fetched", "convert": "converted", "verify": "verified", "copy": "copied"}.get(doing, f"{doing}ed")
    typer.echo(f"{done}: {', '.join(map(str, nodes))}")
