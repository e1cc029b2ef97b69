"""The bill as a table."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from rich.console import RenderableType
from rich.text import Text

from gpufleet.domain.money import usd, usd_per_hour
from gpufleet.domain.status import Bill, BillLine
from gpufleet.reporting.console import BAD, DIM, Page, table, text
from gpufleet.reporting.words import count, duration, moment


def bill_view(bill: Bill, now: datetime, *, since: datetime | None = None) -> RenderableType:
    """One line per rental, the total, and a warning while anything still runs.

    Args:
        now: up to when running rentals are counted.
        since: rentals that ended before are told as one sum.
    """
    if not bill.lines:
        return text("nothing was rented: $0.00")
    earlier = [line for line in bill.lines if since and line.ended and line.ended < since]
    rows = table("node", "rental", "from (UTC)", "for", "$/h", "$", right=("for", "$/h", "$"), folding=("rental",))
    for line in sorted(bill.lines, key=lambda line: (line.node, line.started)):
        if line not in earlier:
            rows.add_row(*_cells(line, now))
    rows.add_section()
    if earlier:
        paid = sum((line.usd for line in earlier), Decimal(0))
        rows.add_row(text("earlier", DIM), text(count(len(earlier), "rental"), DIM), "", "", "", text(usd(paid)))
    rows.add_row("", "", "", "", text("total", "bold"), text(usd(bill.total), "bold"))
    if not any(line.ended is None for line in bill.lines):
        return Page(rows)
    return Page(rows, text(f"still running (+): {usd_per_hour(bill.usd_per_hour)}", BAD))


def _cells(line: BillLine, now: datetime) -> tuple[Text, ...]:
    running = "" if line.ended else " +"
    return (
        text(line.node),
        text(f"{line.provider} {line.instance_id}"),
        text(moment(line.started)),
        text(duration(((line.ended or now) - line.started).total_seconds()) + running),
        text(usd(line.usd_per_hour)),
        text(usd(line.usd)),
    )
