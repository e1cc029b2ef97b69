"""How many decode nodes a prefill node keeps busy, from what a typical request looks like. Pure.

A decode node is taken from the moment its request has a turn at the prefill node, so its cycle is turn plus answer; the
prefill node needs one turn per cycle for each of its decode nodes, and time for the prompts of native requests.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gpufleet.catalog.timing import decode_seconds, handover_seconds, prefill_seconds
from gpufleet.domain.nodes import NodeName
from gpufleet.spec.feeding import feeding
from gpufleet.spec.model import Fleet, Traffic


@dataclass(frozen=True)
class Ratio:
    """What one request that TileRT serves takes, in seconds."""

    turn: float
    """At the prefill node, alone: its prompt, and the rest of its hand-over."""
    prefill: float
    """Of the prefill node's time, native requests that come with it included."""
    decode: float
    """At the decode node."""

    @property
    def decode_per_prefill(self) -> int:
        """Decode nodes that one prefill node keeps busy; at least one, though it may wait."""
        return max(1, int((self.turn + self.decode) / self.prefill))

    def per_minute(self, decode_nodes: int) -> float:
        """Requests a minute of one prefill node with these decode nodes, when there is always one waiting."""
        return 60 * min(decode_nodes / (self.turn + self.decode), 1 / self.prefill)


def ratio_of(traffic: Traffic) -> Ratio:
    """The times of a typical request."""
    prompt = prefill_seconds(traffic.prompt_tokens)
    turn = prompt + handover_seconds()
    natives = (1 - traffic.interactive_share) / traffic.interactive_share
    return Ratio(turn, turn + natives * prompt, decode_seconds(traffic.answer_tokens))


def starving(fleet: Fleet, ratio: Ratio) -> dict[NodeName, int]:
    """Prefill nodes that feed more decode nodes than they keep busy, with how many they feed."""
    loads = Counter(feeding(fleet).values())
    return {node: load for node, load in loads.items() if load > ratio.decode_per_prefill}


def per_minute(fleet: Fleet, ratio: Ratio) -> float:
    """Requests a minute that the fleet's cells serve at most."""
    return sum(ratio.per_minute(load) for load in Counter(feeding(fleet).values()).values())


def told(fleet: Fleet) -> str | None:
    """The ratio in one sentence; None without ``traffic`` or decode nodes."""
    if fleet.traffic is None or not feeding(fleet):
        return None
    ratio = ratio_of(fleet.traffic)
    return (
        f"traffic: a request takes about {ratio.prefill:.2g} s of prefill and {ratio.decode:.2g} s of decode, so a "
        f"prefill node keeps {ratio.decode_per_prefill} decode nodes busy; these cells serve "
        f"{per_minute(fleet, ratio):.0f} requests a minute (timings: gpufleet/catalog/timings.yaml)"
    )
