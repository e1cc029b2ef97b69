"""A node as a machine: what ``node.json`` says of it, faults included."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpufleet.providers.mock.catalog import Listing
from gpufleet.providers.mock.options import Fault, Pace

DRIVER = "595.45.04"
OLD_DRIVER = "550.54.15"
"""Older than any that TileRT's image runs on."""
SMALL_DISK_GB = 200
"""Holds neither the checkpoint nor its conversion."""
NEVER_SECONDS = 1e9
SLOW_FACTOR = 5.0
REBOOT_AFTER_SECONDS = 60.0
PREEMPTED_AFTER_SECONDS = 600.0


def describe(listing: Listing, faults: Iterable[Fault], *, pace: Pace, seed: int) -> dict[str, Any]:
    """The machine part of ``node.json`` (what is rented, not where and when)."""
    kinds = {fault.kind for fault in faults}
    gpus = listing.gpu.count if listing.vram_gb else 0
    return {
        "gpu_model": listing.gpu.model,
        "gpu_count": gpus,
        "gpu_count_visible": max(0, gpus - 1) if "bad-gpu" in kinds else gpus,
        "vram_gb": listing.vram_gb,
        "driver": OLD_DRIVER if "old-driver" in kinds else DRIVER,
        "ram_gb": listing.ram_gb,
        "disk_gb": SMALL_DISK_GB if "small-disk" in kinds else listing.disk_gb,
        "rdma": _rdma(listing),
        "pace": pace.model_dump(exclude_none=True),
        "faults": [_twin_word(fault) for fault in faults if _twin_word(fault)],
        "seed": seed,
    }


def boot_seconds(listing: Listing, faults: Iterable[Fault]) -> float:
    """Simulated seconds from create to a reachable node."""
    for fault in faults:
        if fault.kind == "never":
            return NEVER_SECONDS
        if fault.kind == "slow":
            return fault.after if fault.after is not None else listing.boot_seconds * SLOW_FACTOR
    return listing.boot_seconds


def _rdma(listing: Listing) -> dict[str, int] | None:
    if listing.interconnect not in {"ib", "roce"}:
        return None
    return {"devices": 8, "gbps": (listing.interconnect_gbps or 3200) // 8}


def _twin_word(fault: Fault) -> str:
    """How the node's stand-ins name a fault that they play themselves; empty for the others."""
    if fault.at == "machine":
        return fault.kind
    return {"dead": "ssh-dead", "bad-gpu": "bad-gpu"}.get(fault.kind, "")
