"""``gpufleet plan``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from gpufleet.cli.options import DebugOption, FileOption, FleetArgument, OutputFormat, OutputOption, fleet_file
from gpufleet.cli.work import opened
from gpufleet.errors import InvalidFleet, ProviderRefused

if TYPE_CHECKING:
    from gpufleet.planning.model import FieldChange, Plan
    from gpufleet.spec.model import Fleet


def command(
    fleet: FleetArgument = None,
    *,
    file: FileOption = None,
    output: OutputOption = OutputFormat.TEXT,
    _debug: DebugOption = False,
) -> None:
    """Show what up would do and cost.

    Per node: create, keep, update, replace, drain or terminate, with the offer, its price per hour and the time to
    ready; and how the fleet differs from the record of the last run. Rents nothing.
    """
    from gpufleet.engine import api

    with opened(fleet_file(fleet, file)) as session:
        plan = api.make_plan(session)
        drift = api.drift(session)
    show_plan(session.fleet.name, plan, drift, output)
    refuse(session.fleet, plan)


def show_plan(fleet: str, plan: Plan, drift: Sequence[FieldChange], output: OutputFormat) -> None:
    """Print the plan on stdout."""
    if output is OutputFormat.JSON:
        from gpufleet.reporting.json import dumps

        typer.echo(dumps(plan_document(fleet, plan, drift)))
        return
    from gpufleet.reporting.console import stdout
    from gpufleet.reporting.plan import plan_view

    stdout().print(plan_view(plan, drift))


def plan_document(fleet: str, plan: Plan, drift: Sequence[FieldChange]) -> dict[str, Any]:
    """The plan as JSON."""
    return {
        "fleet": fleet,
        "changes": plan.changes,
        "usd_per_hour_now": plan.usd_per_hour_now,
        "usd_per_hour_after": plan.usd_per_hour_after,
        "seconds_to_ready": plan.seconds_to_ready,
        "actions": plan.actions,
        "drift": drift,
        "problems": plan.problems,
    }


def refuse(fleet: Fleet, plan: Plan) -> None:
    """Stop here when the plan must not be carried out.

    Raises:
        ProviderRefused: some node has no offer.
        InvalidFleet: every node has one, but the file's own limits forbid the whole.
    """
    if plan.refusal is None:
        return
    placed = {action.node for action in plan.actions if action.offer or action.instance_id}
    if set(fleet.nodes()) <= placed:
        raise InvalidFleet(plan.refusal, hint="raise the budget in the fleet file, or ask for less")
    raise ProviderRefused(plan.refusal, hint="choose another shape, region or provider, or try again later")
