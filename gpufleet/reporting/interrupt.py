"""What Ctrl-C says: what exists, what it costs per hour, and the two commands that continue or remove it."""

from __future__ import annotations

from decimal import Decimal

from gpufleet.domain.money import usd_per_hour
from gpufleet.domain.nodes import NodeName
from gpufleet.domain.status import Bill, BillLine
from gpufleet.errors import Interrupted
from gpufleet.reporting.words import count

MOST_TOLD = 8
"""Rentals named one by one; `gpufleet status` has all."""


def interruption(
    bill: Bill, fleet_file: str, *, unclear: int = 0, unclear_usd_per_hour: Decimal = Decimal(0)
) -> Interrupted:
    """The error for a run that was stopped.

    Args:
        bill: everything rented so far; lines without an end are what still exists.
        fleet_file: the path as the user's next command should name it.
        unclear: create calls of unknown outcome, which are on no bill yet.
        unclear_usd_per_hour: what they may cost.
    """
    running = [line for line in bill.lines if line.ended is None]
    if not running and not unclear:
        return Interrupted("interrupted; nothing is rented", hint=f"gpufleet up {fleet_file} (start again)")
    doubt = f", and {count(unclear, 'create call')} of unknown outcome for up to {usd_per_hour(unclear_usd_per_hour)}"
    rentals = [f"{line.node} ({line.provider} {line.instance_id})" for line in sorted(running, key=_by_node)]
    told = rentals[:MOST_TOLD] + [f"and {len(rentals) - MOST_TOLD} more"] * (len(rentals) > MOST_TOLD)
    return Interrupted(
        f"interrupted; {count(len(running), 'rental')} running for {usd_per_hour(bill.usd_per_hour)}"
        + (doubt if unclear else ""),
        where=", ".join(told) or None,
        hint=f"gpufleet up {fleet_file} (continue) or gpufleet down {fleet_file} (remove everything)",
    )


def _by_node(line: BillLine) -> NodeName:
    return line.node
