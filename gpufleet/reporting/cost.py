"""What a fleet has cost, as a table and a few sentences."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Protocol

from rich.console import RenderableType
from rich.text import Text

from gpufleet.domain.money import CENT, usd
from gpufleet.reporting.console import DIM, WARN, Page, table, text
from gpufleet.reporting.words import moment


class PaidPart(Protocol):
    """See `gpufleet.ledger.charges.Part`."""

    @property
    def name(self) -> str: ...
    @property
    def hours(self) -> Decimal: ...
    @property
    def usd(self) -> Decimal: ...


class Told(Protocol):
    """See `gpufleet.engine.spend.Claim`."""

    @property
    def provider(self) -> str: ...
    @property
    def usd(self) -> Decimal | None: ...
    @property
    def ours_usd(self) -> Decimal: ...
    @property
    def why(self) -> str: ...


class Costs(Protocol):
    """See `gpufleet.engine.spend.Costs`."""

    @property
    def since(self) -> datetime | None: ...
    @property
    def until(self) -> datetime: ...
    @property
    def cut(self) -> str: ...
    @property
    def zone(self) -> str: ...
    @property
    def parts(self) -> Sequence[PaidPart]: ...
    @property
    def usd(self) -> Decimal: ...
    @property
    def always_on_usd(self) -> Decimal | None: ...
    @property
    def contract_usd(self) -> Decimal | None: ...
    @property
    def claims(self) -> Sequence[Told]: ...


def cost_view(costs: Costs) -> RenderableType:
    """The parts, the total, both comparisons, and what the providers say."""
    if not costs.parts:
        return text("nothing was rented in this time: $0.00")
    rows = table(costs.cut, "node-hours", "$", right=("node-hours", "$"))
    for part in costs.parts:
        rows.add_row(text(part.name), text(f"{part.hours:,.2f}"), text(usd(part.usd)))
    rows.add_section()
    rows.add_row(text("total", "bold"), "", text(usd(costs.usd), "bold"))
    since = f"from {moment(costs.since)} " if costs.since else ""
    days = f", days of {costs.zone}" if costs.cut == "day" else ""
    lines = [text(f"{since}to {moment(costs.until)} UTC{days}", DIM)]
    lines += [text(_against("every node always on", costs.usd, costs.always_on_usd, "a pool was never rented"))]
    lines += [text(_against("on contract", costs.usd, costs.contract_usd, "set usd_per_month of every pool"))]
    lines += [_told(claim) for claim in costs.claims]
    return Page(rows, *lines)


def _against(what: str, paid: Decimal, other: Decimal | None, unknown: str) -> str:
    """``every node always on: $120.00, 35 % more was saved``."""
    if other is None:
        return f"{what}: unknown ({unknown})"
    if not other:
        return f"{what}: {usd(other)}"
    share = (other - paid) / other
    return f"{what}: {usd(other)}, {abs(share):.0%} {'saved' if share >= 0 else 'less than was paid'}"


def _told(claim: Told) -> Text:
    if claim.usd is None:
        return text(f"{claim.provider} says: unknown ({claim.why})", DIM)
    apart = claim.usd - claim.ours_usd
    if abs(apart) < CENT:
        return text(f"{claim.provider} says the same of all its rentals: {usd(claim.usd)}", DIM)
    more = "more" if apart > 0 else "less"
    return text(f"{claim.provider} says {usd(claim.usd)}, {usd(abs(apart))} {more} than recorded here", WARN)
