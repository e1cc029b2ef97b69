"""What a twin node is: the facts in its ``node.json``, with defaults for all that is missing.

The mock provider writes the file. Durations in it are simulated seconds: real seconds times ``time_scale``.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEFAULTS: dict[str, Any] = {
    "name": "node",
    "address": "127.0.0.1",
    "ssh_port": 2222,
    "authorized_keys": [],
    "boot_seconds": 0,
    "time_scale": 1.0,
    "gpu_model": "B200",
    "gpu_count": 8,
    "vram_gb": 180,
    "driver": "595.45.04",
    "ram_gb": 2000,
    "disk_gb": 8000,
    "faults": [],
    "seed": 1,
}
RDMA: dict[str, float] = {"devices": 8, "gbps": 400}
PACE: dict[str, float] = {
    "prefill_tps": 8000,
    "decode_tps": 200,
    "native_tps": 40,
    "load_seconds": 900,
    "download_gbps": 8,
    "pull_gbps": 8,
    "convert_seconds": 8160,
    "weights_files": 12,
    "pip_seconds": 10,
}


class Node:
    """One node: its root directory and its facts."""

    def __init__(self, root: Path, facts: dict[str, Any]) -> None:
        self.root = root
        self.facts = DEFAULTS | facts
        self.rdma: dict[str, float] = RDMA | (facts["rdma"] or {"devices": 0}) if "rdma" in facts else RDMA
        self.pace: dict[str, float] = PACE | (facts.get("pace") or {})
        self.time_scale = float(self.facts["time_scale"])

    @property
    def gpus_visible(self) -> int:
        """GPUs that the driver answers for; fewer than ``gpu_count`` on a broken node."""
        lost = 1 if self.fault("bad-gpu") is not None else 0
        return int(self.facts.get("gpu_count_visible", int(self.facts["gpu_count"]) - lost))

    @property
    def driver(self) -> str:
        """Version of the NVIDIA driver."""
        return (
            (self.fault("old-driver") or "570.86.15")
            if self.fault("old-driver") is not None
            else str(self.facts["driver"])
        )

    @property
    def disk_bytes(self) -> int:
        """Size of the node's disk."""
        small = self.fault("small-disk")
        return int(float(self.facts["disk_gb"] if small is None else small or 200) * 1e9)

    def fault(self, name: str) -> str | None:
        """The argument of a fault that this node has (``""`` when it has none), or None without the fault.

        Written ``"name"``, ``"name:argument"`` or ``{"kind": "name", "value": argument}``.
        """
        for fault in self.facts["faults"]:
            text = f"{fault.get('kind')}:{fault.get('value', '')}" if isinstance(fault, dict) else str(fault)
            kind, _, argument = text.partition(":")
            if kind == name:
                return argument
        return None

    def pause(self, simulated_seconds: float) -> None:
        """Wait as long as the real thing would take."""
        if simulated_seconds > 0:
            time.sleep(simulated_seconds / self.time_scale)


def load(root: Path | None = None) -> Node:
    """Read a node's facts; without ``root`` those of the node this process runs on (``TWIN_ROOT``)."""
    folder = root or Path(os.environ["TWIN_ROOT"])
    return Node(folder, json.loads((folder / "node.json").read_text()))
