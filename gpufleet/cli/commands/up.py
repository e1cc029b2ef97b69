"""``gpufleet up``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from gpufleet.cli.commands.plan import refuse
from gpufleet.cli.commands.status import show_status
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

if TYPE_CHECKING:
    from gpufleet.engine.session import Session
    from gpufleet.planning.model import Plan


def command(
    fleet: FleetArgument = None,
    *,
    file: FileOption = None,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TEXT,
    _debug: DebugOption = False,
) -> None:
    """Bring the fleet up, or bring it to what the file says.

    Shows the plan with its price and asks, unless --yes. Safe to stop at any time and to run again: it continues.
    """
    from gpufleet.engine import api

    with watched(fleet_file(fleet, file)) as (session, view):
        api.check(session)
        plan = api.make_plan(session)
        agree(session, plan, yes=yes, command=f"gpufleet up {session.path} --yes")
        view.quiet = not plan.changes
        with view:
            status = api.up(session, plan)
    show_status(status, output)


def agree(session: Session, plan: Plan, *, yes: bool, command: str) -> None:
    """Show the plan on stderr and have it accepted. Without changes there is nothing to ask: the run only checks."""
    from gpufleet.domain.money import usd_per_hour
    from gpufleet.reporting.console import stderr
    from gpufleet.reporting.plan import plan_view

    refuse(session.fleet, plan)
    if not plan.changes:
        typer.echo(f"nothing to change: {session.fleet.name} is as {session.path} says", err=True)
        return
    stderr().print(plan_view(plan))
    price = usd_per_hour(plan.usd_per_hour_after)
    confirm(
        f"Go on, for {price}?",
        yes=yes,
        consequence=f"this would run {session.fleet.name} for {price}",
        command=command,
    )
