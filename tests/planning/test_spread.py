from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.domain.nodes import NodeName
from gpufleet.planning.spread import Handover, spread


def nodes(count: int) -> list[NodeName]:
    return [NodeName("decode", index) for index in range(count)]


def rounds(holders: int, ways: dict[NodeName, Handover]) -> dict[NodeName, int]:
    """In which round each node has it: one more than its source, and than whom its source served before."""
    at = dict.fromkeys(nodes(holders), 0)
    for node, way in ways.items():
        at[node] = 1 + max(at[way.source], at[way.before] if way.before else 0)
    return at


@given(holders=st.integers(1, 9), wanting=st.integers(0, 70))
def test_every_node_gets_it_in_as_few_rounds_as_there_can_be(holders: int, wanting: int) -> None:
    every = nodes(holders + wanting)
    ways = spread(every[:holders], every[holders:])
    assert list(ways) == every[holders:]
    needed = math.ceil(math.log2((holders + wanting) / holders))
    assert max(rounds(holders, ways).values()) == needed


@given(holders=st.integers(1, 9), wanting=st.integers(0, 70))
def test_no_node_serves_two_at_once(holders: int, wanting: int) -> None:
    every = nodes(holders + wanting)
    ways = spread(every[:holders], every[holders:])
    at = rounds(holders, ways)
    served = [(way.source, at[way.node]) for way in ways.values()]
    assert len(served) == len(set(served))


def test_seven_nodes_copy_from_one_as_a_tree() -> None:
    sources = {way.node.index: way.source.index for way in spread(nodes(1), nodes(8)[1:]).values()}
    assert sources == {1: 0, 2: 0, 3: 1, 4: 0, 5: 1, 6: 2, 7: 3}
