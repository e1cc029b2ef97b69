"""``gpufleet reconcile``."""

from __future__ import annotations

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
from gpufleet.cli.work import confirm, opened
from gpufleet.domain.audit import Audit
from gpufleet.errors import ProviderRefused, StillBilling


def command(
    fleet: FleetArgument = None,
    *,
    file: FileOption = None,
    provider: Annotated[
        list[str] | None, typer.Option("--provider", metavar="NAME", help="Look at these; may be repeated.")
    ] = None,
    kill: Annotated[bool, typer.Option("--kill", help="End the orphans that are old enough.")] = False,
    owner: Annotated[
        list[str] | None, typer.Option("--owner", metavar="ID", help="With --kill: count this owner's as ours.")
    ] = None,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TEXT,
    _debug: DebugOption = False,
) -> None:
    """Compare what the providers have with what is recorded.

    An orphan carries a key of this ledger and is in no record. Exit code 6 while there is one, 4 when a provider could
    not be read. What others made is shown, and never touched unless --owner names them.
    """
    from gpufleet.engine import api

    path = fleet_file(fleet, file)
    with opened(path, recover=True) as session:
        found = api.audit(session, provider or [])
        _show(found, str(path), output)
        if kill:
            _agree(found, str(path), owner or [], yes=yes)
            api.end_orphans(session, found, owners=owner or [])
            typer.echo("ended, and confirmed gone", err=True)
            return
    _fail_on_orphans(found, str(path))


def _show(found: Audit, path: str, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        from gpufleet.reporting.json import dumps

        typer.echo(dumps(found))
        return
    from gpufleet.reporting.audit import audit_view
    from gpufleet.reporting.console import stdout

    stdout().print(audit_view(found, path))


def _agree(found: Audit, path: str, owners: list[str], *, yes: bool) -> None:
    from gpufleet.reporting.words import count

    theirs = [f for p in found.providers for f in p.found if f.owner in owners and f.ripe]
    number = sum(f.ripe for f in found.orphans) + len([f for f in theirs if f not in found.orphans])
    if number:
        what = count(number, "instance")
        again = f"gpufleet reconcile {path} --kill --yes"
        confirm(f"End {what} for good?", yes=yes, consequence=f"this would end {what}", command=again)


def _fail_on_orphans(found: Audit, path: str) -> None:
    if found.orphans:
        raise StillBilling(f"{len(found.orphans)} orphans may cost money", hint=f"gpufleet reconcile {path} --kill")
    if failed := [p for p in found.providers if p.failure]:
        raise ProviderRefused(f"{failed[0].provider} could not be read: {failed[0].failure}")
