"""``gpufleet providers``."""

from __future__ import annotations

from pathlib import Path

import typer

from gpufleet.cli.options import DebugOption, OutputFormat, OutputOption, WordsArgument
from gpufleet.errors import UsageError

USAGE = "[show NAME | verify NAME]"
_DOING = ("show", "verify")


def command(
    words: WordsArgument = None, *, output: OutputOption = OutputFormat.TEXT, _debug: DebugOption = False
) -> None:
    """List providers; show one; try one, read-only.

    verify asks a provider whose account the key belongs to, what it offers and what runs there. It rents nothing.
    """
    from gpufleet.engine import shop

    folder = Path()
    match words or []:
        case []:
            _print_all(shop.known_providers(folder), output)
        case ["show", name]:
            _print_one(shop.facts_of(name, folder), output)
        case ["verify", name]:
            _print_verified(shop.verify(name, folder), output)
        case [doing, *_] if doing in _DOING:
            raise UsageError(f"gpufleet providers {doing} takes the name of one provider", hint="gpufleet providers")
        case [doing, *_]:
            raise UsageError(f"'{doing}' is not something to do with providers", hint=f"gpufleet providers {USAGE}")


def _print_all(facts: object, output: OutputFormat) -> None:
    from gpufleet.reporting.console import stdout
    from gpufleet.reporting.json import dumps
    from gpufleet.reporting.shop import providers_view

    if output is OutputFormat.JSON:
        typer.echo(dumps({"providers": facts}))
    else:
        stdout().print(providers_view(facts))  # type: ignore[arg-type]


def _print_one(facts: object, output: OutputFormat) -> None:
    from gpufleet.reporting.console import stdout
    from gpufleet.reporting.json import dumps
    from gpufleet.reporting.shop import provider_view

    if output is OutputFormat.JSON:
        typer.echo(dumps(facts))
    else:
        stdout().print(provider_view(facts))  # type: ignore[arg-type]


def _print_verified(told: object, output: OutputFormat) -> None:
    from gpufleet.reporting.console import stdout
    from gpufleet.reporting.json import dumps
    from gpufleet.reporting.shop import verified_view

    if output is OutputFormat.JSON:
        typer.echo(dumps(told))
    else:
        stdout().print(verified_view(told))  # type: ignore[arg-type]
