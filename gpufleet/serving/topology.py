"""Who talks to whom: every address and port of a fleet, worked out once.

Pure: from the fleet file and the nodes' private addresses. Everything that names a peer takes it from here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpufleet.domain.nodes import NodeName, Role
from gpufleet.spec.feeding import feeding, gated_nodes, router_port
from gpufleet.spec.model import Fleet

VLLM_PREFILL_PORT = 8000
VLLM_NATIVE_PORT = 8001
TILERT_CTRL_PORT = 5556
TILERT_HTTP_PORT = 5557
NIXL_SIDE_CHANNEL_PORT = 5600
GATE_PORT = 8100
"""The KV gate of a prefill node, before its vLLM."""
VLLM_ROUTER_PORTS = range(30000, 31000)
"""One for each set of nodes that a vllm-router spreads over (`native_router_port`)."""
WEIGHTS_SHARE_PORT = 18765
"""Where a decode node offers its converted weights to the others, on its private address."""


def cell_name(decode: NodeName) -> str:
    """``cell-decode-0``; a cell keeps its decode node's name whoever feeds it."""
    return f"cell-{decode.slug}"


@dataclass(frozen=True)
class Cell:
    """One decode node, the prefill node that feeds it, and the pd_router between them (it runs on the prefill).

    Cells may share a prefill node behind a KV gate.
    """

    decode: NodeName
    prefill: NodeName
    decode_ip: str
    prefill_ip: str
    port: int
    """The pd_router's own, on the prefill node."""
    gated: bool
    """Whether it asks vLLM through the prefill node's KV gate."""

    @property
    def vllm_port(self) -> int:
        """Where its pd_router finds vLLM, on the prefill node."""
        return GATE_PORT if self.gated else VLLM_PREFILL_PORT

    @property
    def name(self) -> str:
        """HAProxy's server name."""
        return cell_name(self.decode)


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


def native_router_port(topology: Topology, image: str) -> int:
    """Where the vllm-router of just these nodes and this image listens.

    It takes its nodes on its command line. One for other nodes gets a port of its own, so that both run until the last
    stream of the old one has ended and no request is lost.
    """
    nodes = [(str(node), topology.addresses[node]) for node in (*topology.prefill, *topology.native)]
    digest = hashlib.sha256(repr((image, nodes)).encode()).digest()
    return VLLM_ROUTER_PORTS[int.from_bytes(digest[:8], "big") % len(VLLM_ROUTER_PORTS)]


def build_topology(fleet: Fleet, addresses: Mapping[NodeName, str], *, lost: Collection[NodeName] = ()) -> Topology:
    """Join each decode node with the prefill node that feeds it (`gpufleet.spec.feeding`).

    Nodes without an address are left out, and so is a cell that lacks one of its two.

    Args:
        lost: prefill nodes that are to feed nobody; gated ones take their decode nodes over.
    """
    prefill = tuple(n for n in fleet.nodes_of(Role.PREFILL) if n in addresses)
    gated = gated_nodes(fleet)
    cells = tuple(
        Cell(d, p, addresses[d], addresses[p], router_port(fleet, d), p in gated)
        for d, p in feeding(fleet, without=lost).items()
        if d in addresses and p in addresses
    )
    native = tuple(n for n in fleet.nodes_of(Role.NATIVE) if n in addresses)
    return Topology(dict(addresses), cells, native, prefill)
