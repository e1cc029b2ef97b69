"""``gpufleet cost``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from gpufleet.cli.options import DebugOption, FileOption, FleetArgument, OutputFormat, OutputOption, fleet_file
from gpufleet.cli.work import opened
from gpufleet.errors import UsageError
from gpufleet.ledger.charges import Cut


def command(
    fleet: FleetArgument = None,
    *,
    by: Annotated[Cut, typer.Option("--by", help="What the bill is cut by.")] = Cut.POOL,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="7d, 12h, 2026-11-30 or 2026-11-30T08:00 (UTC).")
    ] = None,
    file: FileOption = None,
    output: OutputOption = OutputFormat.TEXT,
    _debug: DebugOption = False,
) -> None:
    """Show what the fleet has cost, and what it would have cost.

    From the ledger: rental intervals in the provider's increments and minimum, and disks. Compared with every node of
    the file always on, with the same nodes on contract (pools' usd_per_month), and with what the provider itself says.

    Example: gpufleet cost --by day --since 7d
    """
    from gpufleet.engine.spend import costs

    begin = parse_since(since, datetime.now(UTC)) if since else None
    with opened(fleet_file(fleet, file), recover=True) as session:
        found = costs(session, by, begin)
    if output is OutputFormat.JSON:
        from gpufleet.reporting.json import dumps

        typer.echo(dumps(found))
        return
    from gpufleet.reporting.console import stdout
    from gpufleet.reporting.cost import cost_view

    stdout().print(cost_view(found))


def parse_since(text: str, now: datetime) -> datetime:
    """A moment, or how long ago it was.

    Raises:
        UsageError: it is neither, or lies in the future.
    """
    from gpufleet.spec.values import parse_duration

    try:
        found = now - parse_duration(text)
    except ValueError:
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            raise UsageError(f"--since {text} is no time", hint="7d, 12h, 2026-11-30 or 2026-11-30T08:00") from None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    if found > now:
        raise UsageError(f"--since {text} lies in the future")
    return found
