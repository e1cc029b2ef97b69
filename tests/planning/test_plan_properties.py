"""What holds for every plan, whatever the file and the world look like."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.domain.market import InstanceState, Offer
from gpufleet.domain.nodes import NodeName
from gpufleet.domain.status import Serving
from gpufleet.planning.model import WANTED_KINDS, ActionKind, Desired, Observed, ObservedNode, desired_down
from gpufleet.planning.planner import plan
from tests.planning import builders
from tests.planning.builders import B200, H200, NOW, fleet, market, node, offer, want

REGIONS = st.sampled_from(["east", "west"])


@st.composite
def offers(draw: st.DrawFn) -> dict[str, list[Offer]]:
    found = [
        offer(
            shape,
            str(draw(st.integers(1, 90))),
            draw(REGIONS),
            stock=draw(st.none() | st.integers(0, 3)),
            offer_id=f"o{i}",
        )
        for i, shape in enumerate(draw(st.lists(st.sampled_from([H200, B200]), max_size=6)))
    ]
    return market(*found)


@st.composite
def rentals(draw: st.DrawFn) -> list[ObservedNode]:
    names = draw(
        st.lists(st.tuples(st.sampled_from(["prefill", "decode", "native", "old"]), st.integers(0, 3)), max_size=7)
    )
    return [_rental(draw, number, NodeName(*name)) for number, name in enumerate(names)]


def _rental(draw: st.DrawFn, number: int, name: NodeName) -> ObservedNode:
    return node(
        str(name),
        instance_id=f"i-{number}",
        provider=draw(st.sampled_from(["mock", "mock", "mock", "ssh"])),
        region=draw(REGIONS),
        usd_per_hour=Decimal(draw(st.integers(0, 90))),
        state=draw(st.sampled_from(InstanceState) | st.just(InstanceState.RUNNING)),
        serving=draw(st.sampled_from(Serving) | st.just(Serving.READY)),
        settings=draw(st.sampled_from([builders.settings(name), {"model": "old"}, {}])),
        duplicate=draw(st.booleans()) and draw(st.booleans()),
        ending=draw(st.booleans()) and draw(st.booleans()),
    )


@st.composite
def wishes(draw: st.DrawFn) -> Desired:
    budget = draw(st.sampled_from([{}, {"max_usd_per_hour": 100}, {"max_usd_total": 50}]))
    rdma = draw(st.sampled_from(["off", "preferred", "required"]))
    pools = {"decode": {"region": draw(st.none() | REGIONS)}}
    counts = [draw(st.integers(0, 3)) for _ in range(3)]
    return want(fleet(*counts, pools=pools, budget=budget, network={"rdma": rdma}))


@st.composite
def worlds(draw: st.DrawFn) -> Observed:
    pending = Decimal(draw(st.integers(0, 40)))
    return Observed(draw(rentals()), draw(offers()), pending, Decimal(draw(st.integers(0, 60))))


@given(wishes(), worlds())
@settings(max_examples=300)
def test_a_plan_that_was_carried_out_leaves_nothing_to_do(desired: Desired, world: Observed) -> None:
    made = plan(desired, world, NOW)
    if made.refusal is None:
        again = plan(desired, builders.carry_out(made, desired, world), NOW)
        assert not again.changes
        assert again.usd_per_hour_now == again.usd_per_hour_after == made.usd_per_hour_after
        assert {a.node for a in again.actions} == set(desired.nodes())


@given(wishes(), worlds())
def test_each_wanted_node_gets_one_fate_and_no_other_node_is_rented(desired: Desired, world: Observed) -> None:
    fates = Counter(a.node for a in plan(desired, world, NOW).actions if a.kind in WANTED_KINDS)
    assert set(fates) <= set(desired.nodes())
    assert not fates or max(fates.values()) == 1


@given(wishes(), worlds())
def test_each_rental_is_kept_once_or_ended_once(desired: Desired, world: Observed) -> None:
    made = plan(desired, world, NOW)
    touched = Counter(a.instance_id for a in made.actions if a.instance_id and a.kind is not ActionKind.DRAIN)
    assert touched == Counter(n.instance_id for n in world.nodes)


@given(wishes(), worlds())
def test_the_only_healthy_rental_of_a_wanted_node_never_ends(desired: Desired, world: Observed) -> None:
    ended = {
        a.instance_id for a in plan(desired, world, NOW).actions if a.kind in {ActionKind.TERMINATE, ActionKind.REPLACE}
    }
    by_node = Counter(n.node for n in world.nodes)
    for rented in world.nodes:
        pool = desired.fleet.pools.get(rented.node.pool)
        fits = pool and rented.provider == "mock" and pool.region in {None, rented.region}
        healthy = rented.state is InstanceState.RUNNING and rented.serving is Serving.READY
        usable = healthy and fits and not rented.duplicate and not rented.ending
        if usable and desired.wants(rented.node) and by_node[rented.node] == 1:
            assert rented.instance_id not in ended


@given(wishes(), worlds())
def test_prices_add_up(desired: Desired, world: Observed) -> None:
    made = plan(desired, world, NOW)
    rents = sum((a.usd_per_hour for a in made.actions if a.kind in WANTED_KINDS), world.pending_usd_per_hour)
    assert made.usd_per_hour_after == rents
    bills = sum((n.usd_per_hour for n in world.nodes if n.state.may_bill), world.pending_usd_per_hour)
    assert made.usd_per_hour_now == bills


@given(wishes(), worlds())
def test_no_offer_is_taken_more_often_than_its_stock(desired: Desired, world: Observed) -> None:
    used = Counter(a.offer for a in plan(desired, world, NOW).actions if a.offer)
    assert all(o.stock is None or count <= o.stock for o, count in used.items())


@given(wishes(), worlds())
def test_what_would_break_the_budget_is_refused(desired: Desired, world: Observed) -> None:
    made = plan(desired, world, NOW)
    limit = desired.fleet.budget.max_usd_per_hour
    rents = made.of(ActionKind.CREATE) + made.of(ActionKind.REPLACE)
    if limit is not None and rents and made.usd_per_hour_after > limit:
        assert made.refusal is not None


@given(wishes(), worlds())
def test_down_ends_every_rental_and_leaves_only_what_is_unclear(desired: Desired, world: Observed) -> None:
    made = plan(desired_down(desired.fleet), world, NOW)
    assert {a.instance_id for a in made.of(ActionKind.TERMINATE)} == {n.instance_id for n in world.nodes}
    assert {a.kind for a in made.actions} <= {ActionKind.DRAIN, ActionKind.TERMINATE}
    assert made.usd_per_hour_after == world.pending_usd_per_hour
    assert made.refusal is None


@given(wishes(), worlds(), st.randoms(use_true_random=False))
def test_the_order_in_which_things_are_seen_does_not_matter(
    desired: Desired, world: Observed, chance: random.Random
) -> None:
    nodes = list(world.nodes)
    chance.shuffle(nodes)
    shuffled = {pool: chance.sample(list(found), len(found)) for pool, found in world.offers.items()}
    mixed = Observed(nodes, shuffled, world.pending_usd_per_hour, world.spent_usd)
    assert plan(desired, mixed, NOW) == plan(desired, world, NOW)
