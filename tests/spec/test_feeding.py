"""Which prefill node feeds which decode nodes: evenly, and without moving more than must."""

from __future__ import annotations

from collections import Counter

import pytest

from gpufleet.domain.nodes import NodeName
from gpufleet.spec.feeding import feeding, router_port, router_ports
from gpufleet.spec.model import Fleet

KEY = {"class": "interactive", "key": "env:KEY"}


def fleet(prefill: int, decode: int, *, gate: bool = True, alone: int = 0) -> Fleet:
    pools = {
        "prefill": {"gpu": "H200:8", "count": prefill, "gate": gate},
        "decode": {"gpu": "B200:8", "count": decode},
        "alone": {"role": "prefill", "gpu": "H200:8", "count": alone},
    }
    return Fleet.model_validate(
        {"name": "x", "provider": "mock", "pools": pools, "router": {"channels": {"chat": KEY}}}
    )


def pairs(spec: Fleet, without: tuple[str, ...] = ()) -> dict[str, str]:
    found = feeding(spec, without=[NodeName.parse(node) for node in without])
    return {str(decode): str(prefill) for decode, prefill in found.items()}


def test_without_gates_the_nth_feeds_the_nth_and_the_rest_is_fed_by_none() -> None:
    assert pairs(fleet(2, 3, gate=False)) == {"decode/0": "prefill/0", "decode/1": "prefill/1"}


def test_one_gated_node_feeds_all() -> None:
    assert pairs(fleet(1, 3)) == {f"decode/{i}": "prefill/0" for i in range(3)}


@pytest.mark.parametrize("prefill", range(1, 7))
@pytest.mark.parametrize("decode", [1, 5, 12, 24])
def test_gated_nodes_share_evenly(prefill: int, decode: int) -> None:
    loads = Counter(pairs(fleet(prefill, decode)).values())
    shares = [loads[f"prefill/{i}"] for i in range(prefill)]
    assert sum(shares) == decode
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize("prefill", range(1, 7))
def test_another_decode_node_moves_none(prefill: int) -> None:
    for decode in range(1, 24):
        before, after = pairs(fleet(prefill, decode)), pairs(fleet(prefill, decode + 1))
        assert before.items() <= after.items()


@pytest.mark.parametrize("prefill", range(1, 7))
def test_another_prefill_node_takes_over_little_more_than_its_share(prefill: int) -> None:
    before, after = pairs(fleet(prefill, 24)), pairs(fleet(prefill + 1, 24))
    moved = sum(before[node] != after[node] for node in before)
    assert moved <= 24 // (prefill + 1) + 1


def test_nodes_without_a_gate_take_one_each_beside_gated_ones() -> None:
    found = pairs(fleet(1, 4, alone=2))
    assert Counter(found.values()) == {"alone/0": 1, "alone/1": 1, "prefill/0": 2}


def test_decode_nodes_of_a_lost_prefill_node_go_to_gated_ones_and_no_other_moves() -> None:
    whole, left = pairs(fleet(3, 9)), pairs(fleet(3, 9), without=("prefill/1",))
    assert left.keys() == whole.keys()
    assert {node for node in whole if whole[node] != left[node]} == {n for n, p in whole.items() if p == "prefill/1"}
    assert sorted(Counter(left.values()).values()) == [4, 5]


def test_nobody_takes_over_where_nobody_has_a_gate() -> None:
    assert pairs(fleet(2, 2, gate=False), without=("prefill/0",)) == {"decode/1": "prefill/1"}


def test_a_routers_port_is_its_own_and_stays_when_counts_change() -> None:
    small, large = fleet(1, 3), fleet(2, 9)
    ports = [router_port(large, NodeName("decode", i)) for i in range(9)]
    assert len(set(ports)) == 9
    assert ports[:3] == [router_port(small, NodeName("decode", i)) for i in range(3)]
    assert {*ports} <= {*router_ports(large)}
