"""``gpufleet reap``."""

from __future__ import annotations

from typing import Annotated

import typer

from gpufleet.cli.options import DebugOption, OutputFormat, OutputOption
from gpufleet.errors import StillBilling


def command(
    *,
    fleet: Annotated[
        list[str] | None, typer.Option("--fleet", metavar="NAME", help="Only these fleets; may be repeated.")
    ] = None,
    output: OutputOption = OutputFormat.TEXT,
    _debug: DebugOption = False,
) -> None:
    """End what has outlived its ttl, for every fleet of the ledger.

    Made for cron: needs no fleet file, rents nothing, prints only when something happened, and leaves a fleet alone
    that another run holds. Exit code 6 while something that should be gone is not.
    """
    from gpufleet.engine.reap import reap
    from gpufleet.reporting.json import dumps

    done = reap(fleet or [])
    if output is OutputFormat.JSON:
        typer.echo(dumps({"fleets": done}))
    else:
        for one in done:
            if one.ended:
                typer.echo(f"{one.fleet}: ended {', '.join(one.ended)}, past their ttl")
            if one.busy:
                typer.echo(f"{one.fleet}: another run holds it; left alone", err=True)
    if failed := [one for one in done if one.failure or one.still]:
        told = "; ".join(f"{one.fleet}: {one.failure or 'not confirmed gone'}" for one in failed)
        raise StillBilling(told, hint="gpufleet reap")
