"""A fleet whose file is gone, broken or renamed, read from what the ledger keeps of it.

What runs must stay removable whatever became of the file that brought it up.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.errors import InvalidFleet
from gpufleet.spec.load import LoadedFleet, load_fleet, parse_fleet
from gpufleet.spec.problems import Problem, Severity

if TYPE_CHECKING:
    from gpufleet.ledger.records import FleetRecord
    from gpufleet.ledger.store import Store


def load_or_recover(path: Path, store: Store) -> LoadedFleet:
    """The fleet that is to be looked at or removed.

    Raises:
        InvalidFleet: the file is wrong, and nothing that it brought up is left.
    """
    try:
        loaded = load_fleet(path)
    except InvalidFleet as broken:
        left = left_by(path, store)
        if not left:
            raise
        return _stored(left[0], path, f"{broken.message}; this is fleet {left[0].name} as it was last brought up")
    left = left_by(path, store, but=loaded.fleet.name)
    if not left or owes(store, loaded.fleet.name):
        return loaded
    return _stored(left[0], path, f"the file names fleet {loaded.fleet.name} now; {left[0].name}, its former one, runs")


def left_by(path: Path, store: Store, *, but: str = "") -> list[FleetRecord]:
    """Fleets other than ``but`` that this file brought up and that are not confirmed gone, the latest first."""
    mine = [f for f in store.fleets() if f.spec_path == str(path.absolute()) and f.name != but]
    return sorted((f for f in mine if owes(store, f.name)), key=lambda f: f.updated_at, reverse=True)


def owes(store: Store, fleet: str) -> bool:
    """Whether something of the fleet costs money, or may."""
    return bool(store.open_obligations(fleet) or store.open_intents(fleet))


def _stored(record: FleetRecord, path: Path, why: str) -> LoadedFleet:
    loaded = parse_fleet(record.spec_text, path=path)
    told = Problem(why, severity=Severity.WARNING)
    return replace(loaded, warnings=(told, *loaded.warnings))
