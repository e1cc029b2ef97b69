"""``gpufleet offers``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gpufleet.cli.options import DebugOption, OutputFormat, OutputOption
from gpufleet.domain.market import GpuShape
from gpufleet.domain.shop import ProviderOffers
from gpufleet.errors import ProviderRefused, UsageError


class Sort(StrEnum):
    """What comes first."""

    PRICE = "price"
    VRAM = "vram"
    BANDWIDTH = "bandwidth"
    PER_GB = "$/GB"


def command(
    *,
    gpu: Annotated[str, typer.Option("--gpu", metavar="MODEL:COUNT", help="Such as B200:8.")] = "",
    region: Annotated[str | None, typer.Option("--region", help="The provider's name of a region.")] = None,
    rdma: Annotated[bool, typer.Option("--rdma", help="Only what is known to have InfiniBand or RoCE.")] = False,
    spot: Annotated[bool, typer.Option("--spot", help="What may be taken back at any time, instead.")] = False,
    provider: Annotated[
        list[str] | None, typer.Option("--provider", metavar="NAME", help="Only these; may be repeated.")
    ] = None,
    sort: Annotated[Sort, typer.Option("--sort", help="What comes first.")] = Sort.PRICE,
    output: OutputOption = OutputFormat.TEXT,
    _debug: DebugOption = False,
) -> None:
    """Compare what providers offer now, per node.

    Needs no fleet file; asks every provider whose key is set. Prices are whole nodes, disk and address included.
    """
    from gpufleet.domain.market import OfferQuery
    from gpufleet.engine.shop import find_offers
    from gpufleet.reporting.console import stdout
    from gpufleet.reporting.json import dumps
    from gpufleet.reporting.shop import offers_view, sorted_offers

    answers = find_offers(OfferQuery(gpu=_shape(gpu), region=region, spot=spot), provider or [], Path())
    _tell_failures(answers)
    found = [offer for answer in answers for offer in answer.offers]
    kept = sorted_offers([o for o in found if not rdma or o.interconnect in {"ib", "roce"}], sort.value)
    if output is OutputFormat.JSON:
        typer.echo(dumps({"offers": kept, "failures": {a.provider: a.failure for a in answers if a.failure}}))
    elif kept:
        stdout().print(offers_view(kept))
    else:
        typer.echo("nothing that fits is offered now", err=True)


def _shape(text: str) -> GpuShape | None:
    from gpufleet.spec.values import parse_shape

    if not text:
        return None
    try:
        shape: GpuShape = parse_shape(text)
    except ValueError as error:
        raise UsageError(f"--gpu {text}: {error}", hint="--gpu B200:8") from None
    return shape


def _tell_failures(answers: list[ProviderOffers]) -> None:
    failed = [answer for answer in answers if answer.failure]
    for answer in failed:
        typer.echo(f"{answer.provider}: {answer.failure}", err=True)
    if failed and len(failed) == len(answers):
        raise ProviderRefused("no provider could be asked", hint="set a key, see: gpufleet providers")
