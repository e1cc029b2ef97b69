"""``gpufleet schema``."""

from __future__ import annotations

import json

import typer

from gpufleet.cli.options import DebugOption, OutputFormat, OutputOption


def command(*, _output: OutputOption = OutputFormat.JSON, _debug: DebugOption = False) -> None:
    """Print the JSON Schema of the fleet file.

    Editors complete and check a fleet file whose first line names it:
    # yaml-language-server: $schema=./fleet.schema.json
    """
    from gpufleet.spec.schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
