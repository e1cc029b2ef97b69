"""``gpufleet tick``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from gpufleet.cli.options import DebugOption, FileOption, FleetArgument, OutputFormat, OutputOption, fleet_file
from gpufleet.cli.work import watched
from gpufleet.errors import FleetBusy

if TYPE_CHECKING:
    from gpufleet.engine.tick import Ticked


def command(
    fleet: FleetArgument = None,
    *,
    file: FileOption = None,
    output: OutputOption = OutputFormat.TEXT,
    _debug: DebugOption = False,
) -> None:
    """Follow the schedule, replace what is lost, hold the budget.

    For cron (gpufleet schedule install), a CronJob or a loop (gpufleet watch). Asks nothing, starts no fleet that was
    not brought up with up, and prints one line when it changed something, nothing otherwise. While another run is at
    work it leaves the fleet alone: the next tick does what is due then.
    """
    from gpufleet.engine import api

    with watched(fleet_file(fleet, file)) as (session, view):
        view.quiet = True
        try:
            with view:
                done = api.tick(session)
        except FleetBusy as busy:
            _say_busy(session.fleet.name, busy, output)
            return
    show(done, output)


def show(done: Ticked, output: OutputFormat) -> None:
    """One line, so that a mail from cron has it all in its subject's length; nothing when nothing happened."""
    if output is OutputFormat.JSON:
        from gpufleet.reporting.json import dumps

        typer.echo(dumps(done, indent=None))
    elif not done.quiet:
        typer.echo(f"{done.fleet}: " + "; ".join((*done.did, *done.warnings)))


def _say_busy(fleet: str, busy: FleetBusy, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        from gpufleet.reporting.json import dumps

        typer.echo(dumps({"fleet": fleet, "did": [], "warnings": [], "busy": busy.message}, indent=None))
