"""The record of a run: what the fleet file resolved to. It is a valid fleet file, and `plan` shows drift against it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpufleet import __version__
from gpufleet.domain.nodes import NodeName
from gpufleet.engine.session import Session, now
from gpufleet.ledger.records import Rental
from gpufleet.routing.files import write_atomically
from gpufleet.spec.dump import dump_fleet
from gpufleet.spec.model import Fleet

_HEADER = "# Written by gpufleet up; what {name} resolved to. A valid fleet file; do not edit.\n"


def record_path(fleet_file: Path) -> Path:
    """``fleet.yaml`` -> ``fleet.lock.yaml``, beside it: two fleets in one folder do not share a record."""
    name = fleet_file.name.removesuffix(".yml").removesuffix(".yaml").removesuffix(".lock")
    return fleet_file.with_name(f"{name}.lock.yaml")


def write_record(session: Session, rentals: dict[NodeName, Rental]) -> Path:
    """Write the lock file, atomically; returns where."""
    lock: dict[str, Any] = {
        "gpufleet": __version__,
        "written": now().isoformat(timespec="seconds"),
        "nodes": {str(node): _node(rental) for node, rental in sorted(rentals.items())},
    }
    fleet = session.fleet.model_copy(update={"lock": lock})
    path = record_path(session.path)
    write_atomically(path, _HEADER.format(name=session.path.name) + dump_fleet(fleet), mode=0o644)
    return path


def _node(rental: Rental) -> dict[str, Any]:
    return {
        "provider": rental.provider,
        "instance": rental.instance_id,
        "offer": rental.offer_id,
        "gpu": str(rental.gpu),
        "region": rental.region,
        "usd_per_hour": str(rental.usd_per_hour),
        "private_ip": rental.private_ip,
        "host_key": rental.ssh.host_key if rental.ssh else None,
        "settings": dict(rental.settings),
        "fingerprint": dict(rental.fingerprint),
    }


def recorded_router(fleet_file: Path) -> str | None:
    """Where the router ran when the record was written; None without a readable one."""
    fleet = _read(fleet_file)
    return fleet.router.host if fleet else None


def read_lock(fleet_file: Path) -> dict[str, Any] | None:
    """The ``lock`` section of the record beside a fleet file; None when there is no readable one."""
    fleet = _read(fleet_file)
    return fleet.lock if fleet else None


def _read(fleet_file: Path) -> Fleet | None:
    from gpufleet.errors import InvalidFleet
    from gpufleet.spec.load import load_fleet

    path = record_path(fleet_file)
    if not path.exists():
        return None
    try:
        return load_fleet(path).fleet
    except InvalidFleet:
        return None
