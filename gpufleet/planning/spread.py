"""How one copy of something large becomes many: every node that has it hands it to one other, round by round. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpufleet.domain.nodes import NodeName


@dataclass(frozen=True)
class Handover:
    """One copy: ``node`` takes it from ``source``, once that has served ``before`` (None: nobody)."""

    node: NodeName
    source: NodeName
    before: NodeName | None = None


def spread(holders: Sequence[NodeName], wanting: Sequence[NodeName]) -> dict[NodeName, Handover]:
    """Who copies from whom, so that all have it after about log2(1 + wanting / holders) rounds.

    In each round each holder serves one node, so that no copy shares its source's bandwidth with another.
    """
    nodes = [*holders, *wanting]
    handovers: dict[NodeName, Handover] = {}
    last_served: dict[NodeName, NodeName] = {}
    have = len(holders)
    for place in range(len(holders), len(nodes)):
        if place == 2 * have:
            have = place
        source, node = nodes[place - have], nodes[place]
        handovers[node] = Handover(node, source, last_served.get(source))
        last_served[source] = node
    return handovers
