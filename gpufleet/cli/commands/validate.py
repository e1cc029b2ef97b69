"""``gpufleet validate``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from gpufleet.cli.options import DebugOption, FileOption, FleetArgument, OutputFormat, OutputOption, fleet_file
from gpufleet.cli.work import warn

if TYPE_CHECKING:
    from gpufleet.spec.model import Fleet


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
            "sizes": sizes(found),
            "warnings": [warning.message for warning in loaded.warnings],
        }
        typer.echo(dumps(document))
        return
    warn(loaded.warnings)
    pools = [f"{pool.count} {name} ({pool.gpu})" for name, pool in loaded.fleet.pools.items()]
    typer.echo(f"{loaded.path} is valid: fleet {loaded.fleet.name}, {', '.join(pools)}")
    typer.echo(f"each node for {loaded.fleet.model.id}:")
    width = max(map(len, loaded.fleet.pools))
    for name, size in sizes(loaded.fleet).items():
        typer.echo(f"  {name:{width}}  {_size_line(size)}")


def sizes(fleet: Fleet) -> dict[str, dict[str, int]]:
    """What each node of a pool has and needs, in decimal GB."""
    from gpufleet.catalog.facts import gpus
    from gpufleet.catalog.sizing import needs

    told = {}
    for name, pool in fleet.pools.items():
        need = needs(fleet.model.id, fleet.role_of(name))
        told[name] = {
            "vram_gb": pool.gpu.count * gpus()[pool.gpu.model].vram_gb,
            "needs_vram_gb": need.vram_gb,
            "needs_disk_gb": pool.disk_gb or need.disk_gb,
            "needs_ram_gb": need.ram_gb,
        }
    return told


def _size_line(size: dict[str, int]) -> str:
    """``1128 GB of VRAM (needs 893), needs 1600 GB of disk and 900 GB of RAM``."""
    vram = f"{size['vram_gb']} GB of VRAM (needs {size['needs_vram_gb']})"
    return f"{vram}, needs {size['needs_disk_gb']} GB of disk and {size['needs_ram_gb']} GB of RAM"
