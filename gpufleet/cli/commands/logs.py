"""``gpufleet logs``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from gpufleet.cli.options import DebugOption, OutputFormat, OutputOption, WordsArgument, split_arguments
from gpufleet.cli.work import node_of, opened
from gpufleet.domain.text import visible
from gpufleet.errors import UsageError

USAGE = "[FLEET.yaml] NODE"


def command(
    words: WordsArgument = None,
    *,
    source: Annotated[
        str | None,
        typer.Option("--source", "-s", help="Which log: a job's name or a container's; else the service."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until Ctrl-C.")] = False,
    tail: Annotated[int, typer.Option("--tail", "-n", min=0, help="How many lines of the past.")] = 200,
    file: Annotated[Path | None, typer.Option("--file", metavar="FLEET.yaml", help="The fleet file.")] = None,
    output: OutputOption = OutputFormat.TEXT,
    _debug: DebugOption = False,
) -> None:
    """Print the logs of a node.

    With --output json one document per line: {"node": "decode/0", "line": "..."}.
    """
    from gpufleet.engine import api

    path, rest = split_arguments(words, file)
    if len(rest) != 1:
        raise UsageError("logs takes one node", hint="gpufleet logs [FLEET.yaml] decode/0")
    with opened(path) as session:
        node = node_of(session.fleet, rest[0])
        chunks = api.node_logs(session, node, source=source, follow=follow, tail=tail)
        if output is OutputFormat.TEXT:
            _copy(chunks)
            return
        from gpufleet.reporting.json import dumps

        for line in lines(chunks):
            typer.echo(dumps({"node": node, "line": line}, indent=None))


def lines(chunks: Iterator[bytes]) -> Iterator[str]:
    """Whole lines out of chunks that end anywhere; bytes that are not UTF-8 are replaced."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in whole)
    if rest:
        yield rest.decode("utf-8", "replace")


def _copy(chunks: Iterator[bytes]) -> None:
    """Byte by byte into a file or pipe; a terminal gets nothing that steers it."""
    if sys.stdout.isatty():
        for line in lines(chunks):
            typer.echo(visible(line))
        return
    for chunk in chunks:
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
