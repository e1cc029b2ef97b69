"""``gpufleet adopt``."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli.options import (
    DebugOption,
    FileOption,
    OutputFormat,
    OutputOption,
    WordsArgument,
    YesOption,
    split_arguments,
)
from gpufleet.cli.work import confirm, opened
from gpufleet.domain.nodes import NodeName
from gpufleet.errors import UsageError

if TYPE_CHECKING:
    from gpufleet.engine.adopt import Adoption

USAGE = "[FLEET.yaml] [NODE=INSTANCE_ID]..."


def command(
    words: WordsArgument = None,
    *,
    provider: Annotated[
        str | None, typer.Option("--provider", metavar="NAME", help="Where they are; else the fleet's provider.")
    ] = None,
    usd_per_hour: Annotated[
        str | None, typer.Option("--usd-per-hour", metavar="USD", help="Price of one, if the provider tells none.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="The private SSH key that logs in to them.")
    ] = None,
    file: FileOption = None,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TEXT,
    _debug: DebugOption = False,
) -> None:
    """Take over instances that are in no record here.

    For a lost state directory: finds what carries a key of this fleet, or takes what you name. Afterwards `up` goes on
    with them and `down` ends them. To log in, the fleet's old SSH key is needed: --key.
    """
    from gpufleet.engine import api
    from gpufleet.remote.keys import import_keypair

    path, rest = split_arguments(words, file)
    with opened(path) as session:
        where = provider or session.fleet.provider.use
        found = api.adoptions(session, where, _named(rest), _price(usd_per_hour))
        if found:
            _agree(found, where, str(path), yes=yes)
            if key:
                import_keypair(session.paths.keys, key)
            api.adopt(session, where, found)
    _show(found, str(path), output, key=key)


def _named(words: list[str]) -> dict[NodeName, str]:
    named = {}
    for word in words:
        node, equals, instance_id = word.partition("=")
        if not equals or not instance_id:
            raise UsageError(f"'{word}' does not say which instance is which node", hint="decode/0=INSTANCE_ID")
        named[NodeName.parse(node)] = instance_id
    return named


def _price(text: str | None) -> Decimal | None:
    if text is None:
        return None
    try:
        price = Decimal(text)
    except InvalidOperation:
        price = Decimal(-1)
    if not price.is_finite() or price < 0:
        raise UsageError(f"'{text}' is not a price", hint="--usd-per-hour 24.80")
    return price


def _agree(found: list[Adoption], where: str, path: str, *, yes: bool) -> None:
    from gpufleet.domain import money
    from gpufleet.reporting.words import count

    for one in found:
        rate = money.usd_per_hour(one.usd_per_hour)
        typer.echo(
            f"{one.node} = {where} {one.instance.instance_id} ({one.instance.name or 'no name'}), {rate}", err=True
        )
    total = money.usd_per_hour(sum((one.usd_per_hour for one in found), Decimal(0)))
    what = f"{count(len(found), 'instance')} at {total}"
    confirm(
        f"Take over {what}?", yes=yes, consequence=f"this takes over {what}", command=f"gpufleet adopt {path} --yes"
    )


def _show(found: list[Adoption], path: str, output: OutputFormat, *, key: Path | None) -> None:
    if output is OutputFormat.JSON:
        from gpufleet.reporting.json import dumps

        typer.echo(dumps({"adopted": {str(one.node): one.instance.instance_id for one in found}}))
        return
    if not found:
        typer.echo("nothing carries a key of this fleet that is not recorded already")
        return
    typer.echo(f"adopted {', '.join(str(one.node) for one in found)}; next: gpufleet up {path} or gpufleet down {path}")
    if key is None:
        typer.echo("without --key `up` cannot log in to them unless the fleet's SSH key is still here", err=True)
