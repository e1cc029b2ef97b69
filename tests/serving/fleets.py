"""The fleet that these tests render, with overlays."""

from __future__ import annotations

from typing import Any

from gpufleet.domain.nodes import NodeName
from gpufleet.serving.topology import Topology, build_topology
from gpufleet.spec.model import Fleet

BASE: dict[str, Any] = {
    "name": "demo",
    "provider": "mock",
    "pools": {
        "prefill": {"gpu": "H200:8", "count": 2},
        "decode": {"gpu": "B200:8", "count": 2},
        "native": {"gpu": "H200:8", "count": 1},
    },
    "router": {
        "channels": {
            "chat": {"class": "interactive", "key": "env:CHAT_KEY"},
            "batch": {"class": "batch", "key": "env:BATCH_KEY"},
        }
    },
}


def fleet(overlay: dict[str, Any] | None = None) -> Fleet:
    """The base fleet with some keys set differently; None removes a key."""
    return Fleet.model_validate(_merge(BASE, overlay or {}))


def topology(spec: Fleet) -> Topology:
    """Prefill nodes at 10.0.1.x, decode nodes at 10.0.2.x, native nodes at 10.0.3.x, in file order."""
    third = {"prefill": 1, "decode": 2, "native": 3}
    addresses: dict[NodeName, str] = {n: f"10.0.{third[spec.role_of(n.pool)]}.{n.index + 1}" for n in spec.nodes()}
    return build_topology(spec, addresses)


def _merge(base: dict[str, Any], overlay: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in overlay.items():
        if value is None:
            merged.pop(key)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merge(merged[key], value)
        else:
            merged[key] = value
    return merged
