"""``gpufleet ssh``."""

from __future__ import annotations

import os

import typer

from gpufleet.cli.options import DebugOption, FileOption, OutputFormat, OutputOption, WordsArgument, split_arguments
from gpufleet.cli.work import node_of, opened
from gpufleet.errors import NodeFailed, UsageError

USAGE = "[FLEET.yaml] NODE"


def command(
    words: WordsArgument = None,
    *,
    file: FileOption = None,
    output: OutputOption = OutputFormat.TEXT,
    _debug: DebugOption = False,
) -> None:
    """Open a shell on a node.

    Hands over to the system's ssh, with the fleet's key and the host key pinned for this rental. With --output json
    the command is printed instead: {"argv": [...]}.
    """
    from gpufleet.engine import api

    path, rest = split_arguments(words, file)
    if len(rest) != 1:
        raise UsageError("ssh takes one node", hint="gpufleet ssh [FLEET.yaml] decode/0")
    with opened(path) as session:
        argv = api.ssh_command(session, node_of(session.fleet, rest[0]))
    if output is OutputFormat.JSON:
        from gpufleet.reporting.json import dumps

        typer.echo(dumps({"argv": argv}))
        return
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - handing the terminal over is the point
    except FileNotFoundError:
        raise NodeFailed(f"{argv[0]} is not installed here", hint="sudo apt-get install openssh-client") from None
