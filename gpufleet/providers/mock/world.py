"""Makes the world agree with the market's memory: node processes that should run do, those of ended nodes are gone.

Every call of the market begins with this, so whatever a killed caller left half done is finished by the next one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from gpufleet.domain.market import InstanceState
from gpufleet.providers.mock import hostkey, processes
from gpufleet.providers.mock.lifecycle import ALIVE, state_at
from gpufleet.providers.mock.market import Market, Rental

_OVER = frozenset({InstanceState.TERMINATED, InstanceState.PREEMPTED, InstanceState.ERROR, InstanceState.STOPPED})


def prepare(root: Path, node_file: dict[str, Any]) -> None:
    """Write a node's root directory, all but its host key. Nothing runs yet."""
    (root / "work").mkdir(parents=True, exist_ok=True)
    draft = root / "node.json.new"
    draft.write_text(json.dumps(node_file, indent=1), encoding="utf-8")
    draft.replace(root / "node.json")


def reconcile(market: Market, now: datetime, command: Sequence[str]) -> bool:
    """Start and end processes as the memory asks for; true when the memory changed.

    Ended nodes count as swept only when no process of theirs is left.
    """
    changed = False
    for rental in market.rentals.values():
        if not rental.swept and state_at(rental, now) in ALIVE:
            changed |= _reboot_with_new_key(rental, now)
            # A root deleted by hand is a dead node that can still be terminated.
            if Path(rental.root).is_dir():
                processes.keep_running(command, Path(rental.root))
    over = {r.root: r for r in market.rentals.values() if not r.swept and state_at(r, now) in _OVER}
    for root in processes.end(over) if over else ():
        over[root].swept = True
        changed = True
    return changed


def _reboot_with_new_key(rental: Rental, now: datetime) -> bool:
    due = rental.rekeyed_after_seconds
    if rental.rekeyed or due is None or now < rental.after(due):
        return False
    hostkey.write_new(Path(rental.root) / "host_key")
    processes.end([rental.root])
    rental.rekeyed = True
    return True
