"""``gpufleet providers``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpufleet.cli.options import DebugOption, OutputFormat, OutputOption, WordsArgument
from gpufleet.errors import UsageError

USAGE = "[show NAME | verify NAME | sandbox NAME]"
_DOING = ("show", "verify", "sandbox")


def command(
    words: WordsArgument = None,
    *,
    listen: Annotated[
        str, typer.Option("--listen", metavar="IP:PORT", help="Where a sandbox listens; loopback only.")
    ] = "127.0.0.1:8090",
    output: OutputOption = OutputFormat.TEXT,
    _debug: DebugOption = False,
) -> None:
    """List providers; show one; try one, read-only.

    verify asks a provider whose account the key belongs to, what it offers and what runs there. It rents nothing.
    sandbox speaks a provider file on this machine until Ctrl-C, so that the file can be tried without a provider.
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
        case ["sandbox", name]:
            _sandbox(name, listen)
        case [doing, *_] if doing in _DOING:
            raise UsageError(f"gpufleet providers {doing} takes the name of one provider", hint="gpufleet providers")
        case [doing, *_]:
            raise UsageError(f"'{doing}' is not something to do with providers", hint=f"gpufleet providers {USAGE}")


def _sandbox(name: str, listen: str) -> None:
    from gpufleet.engine.shop import sandbox_of

    host, _, port = listen.rpartition(":")
    if not port.isdecimal():
        raise UsageError(f"--listen {listen} is not an address and a port", hint="--listen 127.0.0.1:8090")
    server, sandbox = sandbox_of(name, Path(), host.strip("[]"), int(port))
    client = f"  client_id: env:SANDBOX_CLIENT   # {sandbox.client_id}\n" if sandbox.needs_client_id else ""
    typer.echo(
        f"provider:\n  use: {name}\n  base_url: http://{host}:{server.server_address[1]}\n"
        f"  key: env:SANDBOX_KEY\n{client}\nexport SANDBOX_KEY={sandbox.key}"
    )
    typer.echo("Ctrl-C ends it; its nodes exist on paper only", err=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


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
