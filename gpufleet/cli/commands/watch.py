"""``gpufleet watch``."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from gpufleet.cli.commands.tick import show
from gpufleet.cli.options import DebugOption, FileOption, FleetArgument, OutputFormat, OutputOption, fleet_file
from gpufleet.cli.work import opened
from gpufleet.errors import FleetBusy, GpufleetError, UsageError


def command(
    fleet: FleetArgument = None,
    *,
    every: Annotated[str, typer.Option("--every", metavar="TIME", help="From one tick to the next: 30s, 5m.")] = "30s",
    file: FileOption = None,
    output: OutputOption = OutputFormat.TEXT,
    _debug: DebugOption = False,
) -> None:
    """Tick again and again until Ctrl-C.

    The fleet file is read anew each time. What fails is told on stderr and tried again.

    Example: gpufleet watch --every 1m
    """
    from gpufleet.engine.signals import stop_on_signals
    from gpufleet.spec.values import parse_duration

    try:
        pause: timedelta = parse_duration(every)
    except ValueError as wrong:
        raise UsageError(f"--every {every}: {wrong}", hint="--every 30s") from None
    path, stop = fleet_file(fleet, file), threading.Event()
    with stop_on_signals(stop):
        while not stop.is_set():
            _tick(path, stop, output)
            stop.wait(pause.total_seconds())


def _tick(path: Path, stop: threading.Event, output: OutputFormat) -> None:
    from gpufleet.engine import api

    try:
        with opened(path) as session:
            session.stop = stop
            show(api.tick(session), output)
    except FleetBusy:
        return
    except GpufleetError as failure:
        typer.echo(f"{path}: {failure.message}", err=True)
