"""Which offers are taken."""

from __future__ import annotations

from decimal import Decimal
from itertools import combinations, permutations

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.domain.market import ClusterTerms, Offer
from gpufleet.planning.matching import cheapest_match
from gpufleet.planning.model import Observed
from gpufleet.planning.planner import plan
from tests.planning.builders import B200, H200, NOW, fleet, market, node, offer, want


def taken(made: object) -> dict[str, str]:
    return {str(a.node): a.offer.offer_id for a in made.actions if a.offer}  # type: ignore[attr-defined]


def test_the_cheapest_offer_is_taken_until_its_stock_ends() -> None:
    offers = market(offer(H200, "30", stock=1), offer(H200, "35", stock=2), offer(B200, "40"))
    made = plan(want(fleet(2, 1, 1)), Observed(offers=offers), NOW)
    assert taken(made) == {
        "prefill/0": "h200-east-30",
        "prefill/1": "h200-east-35",
        "native/0": "h200-east-35",
        "decode/0": "b200-east-40",
    }


def test_all_nodes_stand_in_the_one_region_that_is_cheapest_in_sum() -> None:
    offers = market(offer(H200, "20", "west"), offer(B200, "60", "west"), offer(H200, "30"), offer(B200, "40"))
    assert set(taken(plan(want(fleet()), Observed(offers=offers), NOW)).values()) == {"h200-east-30", "b200-east-40"}


def test_without_rdma_each_node_is_the_cheapest_anywhere() -> None:
    offers = market(offer(H200, "20", "west"), offer(B200, "60", "west"), offer(H200, "30"), offer(B200, "40"))
    apart = want(fleet(network={"rdma": "off"}))
    assert set(taken(plan(apart, Observed(offers=offers), NOW)).values()) == {"h200-west-20", "b200-east-40"}


def test_a_new_node_joins_the_region_of_those_that_stay() -> None:
    offers = market(offer(B200, "10", "west"), offer(B200, "40", "east"))
    made = plan(want(fleet()), Observed([node("prefill/0", region="east")], offers), NOW)
    assert taken(made) == {"decode/0": "b200-east-40"}


EQUAL = {"pools": {"decode": {"gpu": "H200:8"}}}
AS_ONE = ClusterTerms(2, 4)


def of_one_shape(*offers: Offer) -> dict[str, list[Offer]]:
    return {pool: list(offers) for pool in ("prefill", "decode", "native")}


def test_equal_nodes_are_rented_as_a_cluster_where_there_is_one() -> None:
    offers = of_one_shape(offer(H200, "30"), offer(H200, "35", offer_id="whole", cluster=AS_ONE, interconnect="ib"))
    made = plan(want(fleet(2, 1, **EQUAL)), Observed(offers=offers), NOW)
    assert set(taken(made).values()) == {"whole"}
    assert made.usd_per_hour_after == 3 * 35


def test_single_nodes_on_one_known_fabric_are_taken_when_they_cost_less() -> None:
    single = offer(H200, "30", interconnect="roce")
    offers = of_one_shape(single, offer(H200, "35", offer_id="whole", cluster=AS_ONE, interconnect="ib"))
    made = plan(want(fleet(2, 1, **EQUAL)), Observed(offers=offers), NOW)
    assert set(taken(made).values()) == {single.offer_id}


def test_a_cluster_is_no_offer_for_other_numbers_other_shapes_or_nodes_that_need_not_be_close() -> None:
    whole = offer(H200, "20", offer_id="whole", cluster=AS_ONE)
    for wanted in (fleet(3, 2, **EQUAL), fleet(2, 1), fleet(2, 1, **EQUAL, network={"rdma": "off"})):
        offers = of_one_shape(offer(H200, "30"), whole, offer(B200, "40"))
        made = plan(want(wanted), Observed(offers=offers), NOW)
        assert "whole" not in taken(made).values()


def test_a_node_joins_those_that_stay_and_no_cluster() -> None:
    offers = of_one_shape(offer(H200, "30"), offer(H200, "20", offer_id="whole", cluster=ClusterTerms(1, 4)))
    observed = Observed([node("prefill/0", region="east")], offers)
    assert taken(plan(want(fleet(1, 1, **EQUAL)), observed, NOW)) == {"decode/0": "h200-east-30"}


def test_when_no_region_has_all_the_problem_says_what_is_missing_where() -> None:
    offers = market(offer(H200, "20", "west"), offer(B200, "40", "east"))
    refusal = plan(want(fleet()), Observed(offers=offers), NOW).refusal or ""
    assert "no single region has every node" in refusal
    assert "west: 1 of 1 B200:8 for decode missing" in refusal
    assert "east: 1 of 1 H200:8 for prefill missing" in refusal


def test_too_dear_too_small_and_interruptible_offers_do_not_fit() -> None:
    limits = fleet(pools={"decode": {"max_usd_per_hour": 50, "disk_gb": 2000}})
    for unfit in (
        offer(B200, "51", disk_gb=4000),
        offer(B200, "40", disk_gb=1000),
        offer(B200, "40", spot=True),
        offer(B200, "40", stock=0),
    ):
        refusal = plan(want(limits), Observed(offers=market(offer(H200), unfit)), NOW).refusal or ""
        assert "1 of 1 B200:8 at up to $50/h for decode missing" in refusal


def test_a_pool_with_few_choices_is_not_robbed_by_one_with_many() -> None:
    offers = market(offer(H200, "10", disk_gb=2000, stock=1), offer(H200, "20", disk_gb=500, stock=1), offer(B200))
    picky = fleet(1, 1, 1, pools={"native": {"disk_gb": 1000}})
    made = plan(want(picky), Observed(offers=offers), NOW)
    assert taken(made)["native/0"] == "h200-east-10"
    assert taken(made)["prefill/0"] == "h200-east-20"


@st.composite
def small_markets(draw: st.DrawFn) -> tuple[dict[str, int], dict[str, list[Offer]]]:
    prices = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    offers = [offer(price=str(p), offer_id=f"o{i}", stock=draw(st.integers(0, 2))) for i, p in enumerate(prices)]
    needs = {pool: draw(st.integers(0, 2)) for pool in ("a", "b")}
    return needs, {pool: [o for o in offers if draw(st.booleans())] for pool in needs}


@given(small_markets())
def test_no_other_choice_serves_more_nodes_or_costs_less(case: tuple[dict[str, int], dict[str, list[Offer]]]) -> None:
    needs, offers = case
    found = [o for pool in cheapest_match(needs, offers).values() for o in pool]
    assert (len(found), sum(o.usd_per_hour for o in found)) == brute_force(needs, offers)


def brute_force(needs: dict[str, int], offers: dict[str, list[Offer]]) -> tuple[int, Decimal]:
    distinct = {o.offer_id: o for pool in offers.values() for o in pool}
    units = [o for o in distinct.values() for _ in range(o.stock or 0)]
    slots = [pool for pool, count in needs.items() for _ in range(count)]
    for size in range(min(len(units), len(slots)), -1, -1):
        prices = [
            sum((o.usd_per_hour for o in chosen), Decimal(0))
            for chosen in combinations(units, size)
            if any(
                all(o in offers[pool] for o, pool in zip(chosen, order, strict=True))
                for order in permutations(slots, size)
            )
        ]
        if prices:
            return size, min(prices)
    return 0, Decimal(0)


def test_a_region_that_one_pool_names_holds_for_all() -> None:
    offers = market(
        offer(H200, "10", "east"), offer(B200, "10", "east"), offer(H200, "30", "west"), offer(B200, "40", "west")
    )
    made = plan(want(fleet(pools={"decode": {"region": "west"}})), Observed(offers=offers), NOW)
    assert taken(made) == {"prefill/0": "h200-west-30", "decode/0": "b200-west-40"}


def test_a_region_that_has_all_beats_a_cheaper_one_that_has_not() -> None:
    offers = market(offer(H200, "10", "east"), offer(H200, "30", "west"), offer(B200, "40", "west"))
    made = plan(want(fleet()), Observed(offers=offers), NOW)
    assert made.refusal is None
    assert taken(made) == {"prefill/0": "h200-west-30", "decode/0": "b200-west-40"}
