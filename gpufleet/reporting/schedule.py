"""The coming days of a schedule as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Protocol
from zoneinfo import ZoneInfo

from rich.console import RenderableType

from gpufleet.domain.money import usd_per_hour
from gpufleet.reporting.console import DIM, Page, table, text


class Row(Protocol):
    """See `gpufleet.engine.forecast.Coming`."""

    @property
    def at(self) -> datetime: ...
    @property
    def windows(self) -> Sequence[str]: ...
    @property
    def counts(self) -> Mapping[str, int]: ...
    @property
    def usd_per_hour(self) -> Decimal | None: ...


def schedule_view(rows: Sequence[Row], zone: str, pools: Iterable[str]) -> RenderableType:
    """One line per change; the first is how it is now."""
    names = list(pools)
    shown = table("from", "window", *names, "$/h", right=(*names, "$/h"), folding=("window",))
    for number, row in enumerate(rows):
        local = row.at.astimezone(ZoneInfo(zone))
        shown.add_row(
            text("now" if number == 0 else f"{local:%a %m-%d %H:%M}"),
            text(", ".join(row.windows) or "-", DIM),
            *(text(row.counts.get(name, 0)) for name in names),
            text(usd_per_hour(row.usd_per_hour).removesuffix("/h")),
        )
    return Page(shown, text(f"times in {zone}; ?: no node of a pool was rented yet, so its price is unknown", DIM))
