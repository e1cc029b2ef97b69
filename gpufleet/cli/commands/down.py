"""``gpufleet down``."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

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
from gpufleet.errors import UsageError


def command(
    fleet: FleetArgument = None,
    *,
    file: FileOption = None,
    pool: Annotated[
        str | None, typer.Option("--pool", metavar="POOL", help="Only nodes of this pool; the rest serves on.")
    ] = None,
    keep: Annotated[int, typer.Option("--keep", min=0, max=512, help="With --pool: how many of them stay.")] = 0,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TEXT,
    _debug: DebugOption = False,
) -> None:
    """Remove everything the fleet rents, and print the bill.

    Ends only when the provider confirms that nothing is left. Exit code 6 when it could not: run it again. Works from
    what was last brought up when the fleet file is gone or broken. With --pool it is gpufleet scale POOL=KEEP, which
    never rents.
    """
    from gpufleet.engine import api

    if pool is not None:
        _shrink(fleet_file(fleet, file), pool, keep, output, yes=yes)
        return

    began = datetime.now(UTC)
    with watched(fleet_file(fleet, file), recover=True) as (session, view):
        _agree(api.status(session, live=False).bill, session.fleet.name, f"gpufleet down {session.path} --yes", yes=yes)
        with view:
            bill = api.down(session)
        name = session.fleet.name
    _show_bill(name, bill, output, since=began)


def _shrink(path: Path, pool: str, keep: int, output: OutputFormat, *, yes: bool) -> None:
    from gpufleet.cli.commands.scale import scale

    with watched(path) as (session, view):
        running = session.fleet.counts.get(pool, keep)
        if keep > running:
            raise UsageError(
                f"{pool} has {running} nodes, and down rents none", hint=f"gpufleet scale {path} {pool}={keep}"
            )
        scale(session, view, {pool: keep}, output, yes=yes)


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
