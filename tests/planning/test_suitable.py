"""What the market tells beforehand is not found out with money."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gpufleet.planning.suitable import suitable
from tests.planning.builders import B200, NOW, fleet, offer


@pytest.mark.parametrize(
    ("interconnect", "taken"), [("ib", True), ("roce", True), ("unknown", True), ("eth", False), ("none", False)]
)
def test_where_rdma_is_required_nothing_is_taken_that_is_known_to_lack_it(interconnect: str, *, taken: bool) -> None:
    one = offer(interconnect=interconnect)
    kept, notes = suitable(fleet(network={"rdma": "required"}), [one], NOW)
    assert kept == [one] * taken
    assert notes == [] if taken else ["mock: 1 offer of H200:8 left out: no RDMA, and network.rdma is required"]
    assert suitable(fleet(), [one], NOW) == ([one], [])


def test_what_is_taken_back_before_the_ttl_is_over_is_left_out() -> None:
    short = [offer(price=price, contract_end=NOW + timedelta(hours=7)) for price in ("20", "21")]
    long = offer(price="30", contract_end=NOW + timedelta(hours=9))
    kept, notes = suitable(fleet(budget={"ttl": "8h"}), [*short, long, offer(B200)], NOW)
    assert kept == [long, offer(B200)]
    assert notes == ["mock: 2 offers of H200:8 left out: taken back by the provider before budget.ttl is over"]
    assert suitable(fleet(), short, NOW) == (short, [])
