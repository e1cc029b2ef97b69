"""``gpufleet render``."""

from __future__ import annotations

import typer

from gpufleet.cli.options import DebugOption, FileOption, OutputFormat, OutputOption, WordsArgument, split_arguments
from gpufleet.cli.work import node_of, opened
from gpufleet.errors import UsageError

USAGE = "[FLEET.yaml] WHAT [NODE]"


def command(
    words: WordsArgument = None,
    *,
    file: FileOption = None,
    output: OutputOption = OutputFormat.TEXT,
    _debug: DebugOption = False,
) -> None:
    """Print what would run: a script, a launch command, haproxy.cfg.

    WHAT is launch (a line for each program of a node), haproxy, or the name of a playbook; NODE is where it would run.
    Secrets are left out.
    """
    from gpufleet.engine import api

    path, rest = split_arguments(words, file)
    if not 1 <= len(rest) <= 2:
        raise UsageError("render takes WHAT and maybe a node", hint="gpufleet render [FLEET.yaml] launch decode/0")
    with opened(path) as session:
        node = node_of(session.fleet, rest[1]) if len(rest) == 2 else None
        text = api.render(session, rest[0], node)
    if output is OutputFormat.JSON:
        from gpufleet.reporting.json import dumps

        typer.echo(dumps({"what": rest[0], "node": node, "text": text}))
        return
    typer.echo(text, nl=not text.endswith("\n"))
