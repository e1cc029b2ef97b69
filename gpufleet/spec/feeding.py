"""Which prefill node feeds which decode nodes. Pure: from the fleet file alone, so that every command sees the same.

A prefill node feeds one decode node, because TileRT's connector keeps one staging buffer per rank; behind a KV gate it
feeds any number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpufleet.domain.nodes import NodeName, Role
from gpufleet.spec.model import MOST_NODES, Fleet

PD_ROUTER_PORT = 23333
"""Where the first decode node's pd_router listens."""


def feeding(fleet: Fleet, *, without: Collection[NodeName] = ()) -> Mapping[NodeName, NodeName]:
    """Decode node -> the prefill node that feeds it, in file order. Decode nodes that none can feed are left out.

    Nodes without a gate take the first decode nodes, one each; those with one share the rest evenly. Another decode
    node moves none of those that are there; another gated prefill node takes over little more than its share.

    Args:
        without: prefill nodes that are not there. Their decode nodes go to gated ones; no other decode node moves.
    """
    gated = gated_nodes(fleet)
    alone = [node for node in fleet.nodes_of(Role.PREFILL) if node not in gated]
    decode = fleet.nodes_of(Role.DECODE)
    pairs = dict(zip(decode, alone, strict=False))
    pairs |= _spread(decode[len(alone) :], gated)
    left = [node for node in gated if node not in without]
    orphans = [node for node, prefill in pairs.items() if prefill in without]
    fed = {node: prefill for node, prefill in pairs.items() if prefill not in without}
    for orphan in orphans if left else ():
        fed[orphan] = min(left, key=lambda node: (_load(fed, node), left.index(node)))
    return {node: fed[node] for node in decode if node in fed}


def gated_nodes(fleet: Fleet) -> list[NodeName]:
    """Prefill nodes with a KV gate, in file order."""
    return [node for node in fleet.nodes_of(Role.PREFILL) if fleet.pools[node.pool].gate]


def router_port(fleet: Fleet, decode: NodeName) -> int:
    """Where the pd_router of a decode node listens, on the prefill node that feeds it.

    Of each decode node its own, and the same however the counts of pools change.
    """
    return PD_ROUTER_PORT + MOST_NODES * fleet.pools_of(Role.DECODE).index(decode.pool) + decode.index


def router_ports(fleet: Fleet) -> range:
    """Every port that `router_port` may give."""
    return range(PD_ROUTER_PORT, PD_ROUTER_PORT + MOST_NODES * len(fleet.pools_of(Role.DECODE)))


def _spread(decode: list[NodeName], gated: list[NodeName]) -> dict[NodeName, NodeName]:
    """As if the prefill nodes had come one after the other: each takes over what keeps the shares even, and no more.

    The first ``n`` decode nodes are shared evenly for every ``n``, so none of them moves when others come or go.
    """
    owners = [0] * len(decode)
    for count in range(2, len(gated) + 1):
        loads = [0] * count
        for place, owner in enumerate(owners):
            newest = count - 1
            owners[place] = min((owner, newest, *range(newest)), key=loads.__getitem__)
            loads[owners[place]] += 1
    return {node: gated[owner] for node, owner in zip(decode, owners, strict=True)} if gated else {}


def _load(fed: Mapping[NodeName, NodeName], prefill: NodeName) -> int:
    return sum(feeder == prefill for feeder in fed.values())
