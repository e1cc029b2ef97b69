"""``gpufleet validate``."""

from __future__ import annotations

import typer

from gpufleet.cli.options import DebugOption, FileOption, FleetArgument, OutputFormat, OutputOption, fleet_file
from gpufleet.cli.work import warn


def command(
    fleet: FleetArgument = None,
    *,
    file: FileOption = None,
    output: OutputOption = OutputFormat.TEXT,
    _debug: DebugOption = False,
) -> None:
    """Check the fleet file, without network and without cost.

    Checks keys, types and values, the sizing of every pool, and what prefill and decode must agree on.
    Exit code 3 when something is wrong; every problem is listed with its line.
    """
    from gpufleet.spec.load import load_fleet

    loaded = load_fleet(fleet_file(fleet, file))
    if output is OutputFormat.JSON:
        from gpufleet.reporting.json import dumps

        found = loaded.fleet
        document = {
            "valid": True,
            "fleet": found.name,
            "path": loaded.path,
            "nodes": found.nodes(),
            "warnings": [warning.message for warning in loaded.warnings],
        }
        typer.echo(dumps(document))
        return
    warn(loaded.warnings)
    pools = [f"{pool.count} {name} ({pool.gpu})" for name, pool in loaded.fleet.pools.items()]
    typer.echo(f"{loaded.path} is valid: fleet {loaded.fleet.name}, {', '.join(pools)}")
