"""Who talks to whom: every address and port of a fleet, worked out once.

Pure: from the fleet file and the nodes' private addresses. Everything that names a peer takes it from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpufleet.domain.nodes import NodeName, Role
from gpufleet.spec.model import Fleet

VLLM_PREFILL_PORT = 8000
VLLM_NATIVE_PORT = 8001
TILERT_CTRL_PORT = 5556
TILERT_HTTP_PORT = 5557
NIXL_SIDE_CHANNEL_PORT = 5600
PD_ROUTER_PORT = 23333
VLLM_ROUTER_PORT = 30000
WEIGHTS_SHARE_PORT = 18765
"""Where a decode node offers its converted weights to the others, on its private address."""


@dataclass(frozen=True)
class Cell:
    """One decode node, the prefill node that feeds it, and the pd_router between them (it runs on the prefill)."""

    decode: NodeName
    prefill: NodeName
    decode_ip: str
    prefill_ip: str

    @property
    def name(self) -> str:
        """``cell-decode-0``; HAProxy's server name."""
        return f"cell-{self.decode.slug}"


@dataclass(frozen=True)
class Topology:
    """The data plane of one fleet."""

    addresses: Mapping[NodeName, str]
    """Private IP per node."""
    cells: tuple[Cell, ...]
    native: tuple[NodeName, ...]
    prefill: tuple[NodeName, ...]

    @property
    def native_router(self) -> NodeName | None:
        """The node that runs vllm-router: the first native one."""
        return self.native[0] if self.native else None


def build_topology(fleet: Fleet, addresses: Mapping[NodeName, str]) -> Topology:
    """Pair decode node i with prefill node i.

    A prefill node feeds at most one decode node: TileRT's prefill connector has one staging buffer per rank, and two
    requests that overlap there send one caller's KV cache to the other's decode node.
    Nodes without an address are left out, and so is a cell that lacks one of its two.
    """
    prefill = tuple(n for n in fleet.nodes_of(Role.PREFILL) if n in addresses)
    decode = fleet.nodes_of(Role.DECODE)
    pairs = zip(decode, fleet.nodes_of(Role.PREFILL), strict=False)
    cells = tuple(Cell(d, p, addresses[d], addresses[p]) for d, p in pairs if d in addresses and p in addresses)
    native = tuple(n for n in fleet.nodes_of(Role.NATIVE) if n in addresses)
    return Topology(dict(addresses), cells, native, prefill)
