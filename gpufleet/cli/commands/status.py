"""``gpufleet status``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from gpufleet.cli.options import DebugOption, FileOption, FleetArgument, OutputFormat, OutputOption, fleet_file
from gpufleet.cli.work import opened
from gpufleet.domain.status import FleetStatus


def command(
    fleet: FleetArgument = None,
    *,
    file: FileOption = None,
    offline: Annotated[bool, typer.Option("--offline", help="Tell what is recorded, ask no provider.")] = False,
    output: OutputOption = OutputFormat.TEXT,
    _debug: DebugOption = False,
) -> None:
    """Show nodes, routes, endpoint and bill.

    Asks the providers what they bill, the router what it serves, and KV gates on their nodes what they hand over:
    per decode node how many, how many failed, within which time (p95) and how much; and how long requests queue (p95).
    """
    from gpufleet.engine import api

    with opened(fleet_file(fleet, file), recover=True) as session:
        status = api.status(session, live=not offline)
    show_status(status, output)


def show_status(status: FleetStatus, output: OutputFormat) -> None:
    """Print the status on stdout."""
    if output is OutputFormat.JSON:
        from gpufleet.reporting.json import dumps, status_document

        typer.echo(dumps(status_document(status)))
        return
    from gpufleet.reporting.console import stdout
    from gpufleet.reporting.status import status_view

    stdout().print(status_view(status, datetime.now(UTC)))
