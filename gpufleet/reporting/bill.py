"""The bill as a table."""

from __future__ import annotations

from datetime import datetime

from rich.console import Group, RenderableType

from gpufleet.domain.money import usd, usd_per_hour
from gpufleet.domain.status import Bill
from gpufleet.reporting.console import BAD, table, text
from gpufleet.reporting.words import duration, moment


def bill_view(bill: Bill, now: datetime) -> RenderableType:
    """One line per rental, the total, and a warning while anything still runs."""
    if not bill.lines:
        return text("nothing was rented: $0.00")
    rows = table("node", "rental", "from (UTC)", "for", "$/h", "$", right=("for", "$/h", "$"), folding=("rental",))
    for line in sorted(bill.lines, key=lambda line: (line.node, line.started)):
        rows.add_row(
            text(line.node),
            text(f"{line.provider} {line.instance_id}"),
            text(moment(line.started)),
            text(duration(((line.ended or now) - line.started).total_seconds()) + ("" if line.ended else " +")),
            text(usd(line.usd_per_hour)),
            text(usd(line.usd)),
        )
    rows.add_section()
    rows.add_row("", "", "", "", text("total", "bold"), text(usd(bill.total), "bold"))
    if not any(line.ended is None for line in bill.lines):
        return rows
    return Group(rows, text(f"still running (+): {usd_per_hour(bill.usd_per_hour)}", BAD))
