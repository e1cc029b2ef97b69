"""``gpufleet exec``."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import typer

from gpufleet.cli.options import DebugOption, FileOption, OutputFormat, OutputOption, WordsArgument, split_arguments
from gpufleet.cli.work import nodes_of, opened
from gpufleet.domain.nodes import NodeName
from gpufleet.domain.text import visible
from gpufleet.errors import NodeFailed, UsageError

if TYPE_CHECKING:
    from gpufleet.remote.machine import Completed

USAGE = "[FLEET.yaml] NODE|POOL|all -- COMMAND..."


def command(
    words: WordsArgument = None,
    *,
    file: FileOption = None,
    output: OutputOption = OutputFormat.TEXT,
    _debug: DebugOption = False,
) -> None:
    """Run a command on a node, a pool or all nodes.

    One word after -- is a shell line ('ls | wc -l'); several are a command and its arguments.
    Every line is preceded by its node. Exit code 5 when it failed on any of them. With --output json one document per
    node and line: {"node": "decode/0", "exit_code": 0, "stdout": "...", "stderr": "..."}.
    """
    from gpufleet.engine import api

    path, rest = split_arguments(words, file)
    if len(rest) < 2:
        raise UsageError("exec takes a node and a command", hint=f"gpufleet exec {USAGE}")
    target, *words_to_run = rest
    failed: list[str] = []
    with opened(path) as session:
        for node, completed in api.execute(session, nodes_of(session.fleet, target), shell_line(words_to_run)):
            _show(node, completed, output)
            failed += [f"{node} (exit {completed.exit_code})"] if completed.exit_code else []
    if failed:
        raise NodeFailed(f"the command failed on {', '.join(failed)}")


def shell_line(words: list[str]) -> str:
    """``["ls | wc -l"]`` stays a shell line; ``["echo", "a b"]`` is quoted so that it stays two words."""
    return words[0] if len(words) == 1 else shlex.join(words)


def _show(node: NodeName, completed: Completed, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        from gpufleet.reporting.json import dumps, to_json

        typer.echo(dumps({"node": node, **to_json(completed)}, indent=None))
        return
    for text, to_stderr in ((completed.stdout, False), (completed.stderr, True)):
        for line in text.splitlines():
            typer.echo(f"{node} | {visible(line)}", err=to_stderr)
