"""The entry point: parse, run one command, turn errors into a few lines and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, NoReturn

import typer

from gpufleet import __version__
from gpufleet.cli import failures
from gpufleet.cli.lazy import LazyGroup
from gpufleet.cli.pipes import ReaderGone
from gpufleet.errors import Interrupted

EPILOG = "The fleet file is the first argument, else $GPUFLEET_FILE, else ./fleet.yaml. Nodes are named pool/index."

app = typer.Typer(cls=LazyGroup, rich_markup_mode=None, epilog=EPILOG)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gpufleet {__version__}")
        raise typer.Exit


@app.callback()
def gpufleet(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """One fleet.yaml to rented GPU nodes that serve vLLM x TileRT, and back to zero."""


def run(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave the process with its exit code."""
    code = main(sys.argv[1:] if argv is None else argv)
    if code == Interrupted.exit_code:
        _leave(code)
    sys.exit(code)


def _leave(code: int) -> NoReturn:
    """Do not wait for calls that threads still have in flight: after a second Ctrl-C the user has waited enough.

    What they were about is on disk, as after any kill.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def main(argv: Sequence[str]) -> int:
    """Run one command line.

    Returns:
        The exit code; `docs/exit-codes.md` lists them.
    """
    report = failures.Report.asked_for_by(argv)
    try:
        code = typer.main.get_command(app).main(list(argv) or ["--help"], prog_name="gpufleet", standalone_mode=False)
        sys.stdout.flush()
    except ReaderGone:
        return failures.BROKEN_PIPE
    except KeyboardInterrupt:
        return Interrupted.exit_code
    except Exception as error:  # noqa: BLE001 - the outermost edge: whatever comes here must become a line
        return report.show(error)
    return code if isinstance(code, int) else 0
