"""``gpufleet down``."""

from __future__ import annotations

from datetime import UTC, datetime

import typer

from gpufleet.cli.options import (
    DebugOption,
    FileOption,
    FleetArgument,
    OutputFormat,
    OutputOption,
    YesOption,
    fleet_file,
)
from gpufleet.cli.work import confirm, watched
from gpufleet.domain.status import Bill


def command(
    fleet: FleetArgument = None,
    *,
    file: FileOption = None,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TEXT,
    _debug: DebugOption = False,
) -> None:
    """Remove everything the fleet rents, and print the bill.

    Ends only when the provider confirms that nothing is left. Exit code 6 when it could not: run it again. Works from
    what was last brought up when the fleet file is gone or broken.
    """
    from gpufleet.engine import api

    began = datetime.now(UTC)
    with watched(fleet_file(fleet, file), recover=True) as (session, view):
        _agree(api.status(session, live=False).bill, session.fleet.name, f"gpufleet down {session.path} --yes", yes=yes)
        with view:
            bill = api.down(session)
        name = session.fleet.name
    _show_bill(name, bill, output, since=began)


def _agree(bill: Bill, fleet: str, command: str, *, yes: bool) -> None:
    """Ask before anything that runs is removed."""
    from gpufleet.domain.money import usd_per_hour
    from gpufleet.reporting.words import count

    running = [line for line in bill.lines if line.ended is None]
    if not running:
        return
    what = f"{count(len(running), 'node')} of {fleet} at {usd_per_hour(bill.usd_per_hour)}"
    confirm(f"Remove {what}?", yes=yes, consequence=f"down would remove {what}", command=command)


def _show_bill(fleet: str, bill: Bill, output: OutputFormat, *, since: datetime) -> None:
    if output is OutputFormat.JSON:
        from gpufleet.reporting.json import bill_document, dumps

        typer.echo(dumps(bill_document(fleet, bill)))
        return
    from gpufleet.reporting.bill import bill_view
    from gpufleet.reporting.console import stdout

    stdout().print(bill_view(bill, datetime.now(UTC), since=since))
