"""What each difference between the file and the world leads to."""

from __future__ import annotations

from decimal import Decimal

import pytest

from gpufleet.domain.market import GpuShape, InstanceState
from gpufleet.domain.nodes import NodeName, Role
from gpufleet.domain.status import Serving
from gpufleet.planning.model import ActionKind, FieldChange, Observed, desired_down
from gpufleet.planning.planner import plan
from tests.planning.builders import B200, ENOUGH, H200, NOW, fleet, market, node, offer, settings, steps, want

HEALTHY = [node("prefill/0"), node("decode/0")]


def test_an_empty_world_gets_every_node_of_the_file() -> None:
    made = plan(want(fleet(2, 2, 1)), Observed(offers=ENOUGH), NOW)
    assert steps(made) == [
        "create prefill/0",
        "create prefill/1",
        "create decode/0",
        "create decode/1",
        "create native/0",
    ]
    assert made.usd_per_hour_now == 0
    assert made.usd_per_hour_after == Decimal(170)
    assert made.changes
    assert made.refusal is None


def test_a_healthy_fleet_needs_nothing() -> None:
    made = plan(want(fleet()), Observed(HEALTHY), NOW)
    assert steps(made) == ["keep prefill/0", "keep decode/0"]
    assert not made.changes
    assert made.seconds_to_ready == 0


@pytest.mark.parametrize("state", ["preempted", "error", "terminated", "stopped", "terminating"])
def test_a_lost_node_is_replaced(state: str) -> None:
    lost = node("decode/0", state=InstanceState(state))
    made = plan(want(fleet()), Observed([node("prefill/0"), lost], ENOUGH), NOW)
    (replaced,) = made.of(ActionKind.REPLACE)
    assert replaced.instance_id == "i-decode-0"
    assert replaced.offer is not None
    assert replaced.usd_per_hour == 40
    assert state in replaced.reason


@pytest.mark.parametrize("state", ["provisioning", "booting", "running", "unknown"])
@pytest.mark.parametrize("serving", ["starting", "sick", "unknown"])
def test_a_node_that_is_not_ready_is_brought_up_in_place(state: str, serving: str) -> None:
    half = node("decode/0", state=InstanceState(state), serving=Serving(serving))
    made = plan(want(fleet()), Observed([node("prefill/0"), half], ENOUGH), NOW)
    assert steps(made) == ["update decode/0", "keep prefill/0"]


def test_changed_settings_are_shown_field_by_field_and_updated_in_place() -> None:
    old = node("decode/0", settings={**settings(NodeName("decode", 0)), "model": "old", "gone": "1"})
    (update,) = plan(want(fleet()), Observed([node("prefill/0"), old]), NOW).of(ActionKind.UPDATE)
    assert update.changes == (FieldChange("gone", "1", None), FieldChange("model", "old", "glm"))
    assert update.reason == "gone, model changed in the file"
    assert update.usd_per_hour == 30


@pytest.mark.parametrize(
    ("was", "field"),
    [({"gpu": GpuShape("H100", 8)}, "gpu"), ({"provider": "ssh"}, "provider"), ({"region": "west"}, "region")],
)
def test_what_no_playbook_can_change_means_another_rental(was: dict[str, object], field: str) -> None:
    wanted = want(fleet(pools={"decode": {"region": "east"}}))
    made = plan(wanted, Observed([node("prefill/0"), node("decode/0", **was)], ENOUGH), NOW)
    (replaced,) = made.of(ActionKind.REPLACE)
    assert [change.field for change in replaced.changes] == [field]


def test_a_region_that_the_file_leaves_open_is_no_difference() -> None:
    made = plan(want(fleet()), Observed([node("prefill/0", region="west"), node("decode/0", region="west")]), NOW)
    assert not made.changes


def test_nodes_beyond_the_count_drain_before_they_end() -> None:
    made = plan(want(fleet(1, 1)), Observed([*HEALTHY, node("decode/1")]), NOW)
    assert steps(made) == ["drain decode/1", "terminate decode/1", "keep prefill/0", "keep decode/0"]
    assert made.usd_per_hour_now == 90
    assert made.usd_per_hour_after == 60


@pytest.mark.parametrize(
    "extra",
    [
        node("decode/1", serving=Serving.STARTING),
        node("decode/1", state=InstanceState.PREEMPTED),
        node("decode/1", ending=True),
    ],
)
def test_what_serves_nobody_ends_without_a_drain(extra: object) -> None:
    made = plan(want(fleet(1, 1)), Observed([*HEALTHY, extra]), NOW)  # type: ignore[list-item]
    assert steps(made)[0] == "terminate decode/1"
    assert not made.of(ActionKind.DRAIN)


def test_a_drained_node_is_not_drained_again() -> None:
    observed = Observed([*HEALTHY, node("decode/1")], drained=frozenset({NodeName("decode", 1)}))
    assert steps(plan(want(fleet(1, 1)), observed, NOW))[0] == "terminate decode/1"


def test_a_node_of_a_pool_that_left_the_file_ends() -> None:
    made = plan(want(fleet()), Observed([*HEALTHY, node("cheap/0")]), NOW)
    assert steps(made)[:2] == ["drain cheap/0", "terminate cheap/0"]
    assert made.actions[0].role is None
    assert made.actions[0].reason == "the file has no pool cheap"


def test_of_two_rentals_for_one_node_the_better_one_stays() -> None:
    spare = node("decode/0", instance_id="i-spare", serving=Serving.STARTING)
    made = plan(want(fleet()), Observed([spare, *HEALTHY]), NOW)
    assert steps(made) == ["terminate decode/0", "keep prefill/0", "keep decode/0"]
    assert made.actions[0].instance_id == "i-spare"


def test_a_duplicate_or_ending_rental_never_stands_for_its_node() -> None:
    for flag in ("duplicate", "ending"):
        used = Observed([node("prefill/0"), node("decode/0", **{flag: True})], ENOUGH)
        assert steps(plan(want(fleet()), used, NOW)) == ["terminate decode/0", "create decode/0", "keep prefill/0"]


def test_the_same_id_at_two_providers_is_two_rentals() -> None:
    other = node("decode/1", provider="ssh", instance_id="i-decode-0")
    made = plan(want(fleet()), Observed([*HEALTHY, other]), NOW)
    assert steps(made)[:2] == ["drain decode/1", "terminate decode/1"]


def test_down_ends_everything_and_is_never_refused() -> None:
    poor = fleet(budget={"max_usd_per_hour": 1, "max_usd_total": 1})
    observed = Observed([*HEALTHY, node("cheap/3")], spent_usd=Decimal(1000), pending_usd_per_hour=Decimal(7))
    made = plan(desired_down(poor), observed, NOW)
    assert [a.node.pool for a in made.of(ActionKind.TERMINATE)] == ["prefill", "decode", "cheap"]
    assert len(made.of(ActionKind.DRAIN)) == 3
    assert made.usd_per_hour_after == 7
    assert made.refusal is None


def test_ends_stand_before_rentals() -> None:
    observed = Observed([node("prefill/0", state=InstanceState.ERROR), node("native/0")], ENOUGH)
    assert steps(plan(want(fleet()), observed, NOW)) == [
        "drain native/0",
        "terminate native/0",
        "replace prefill/0",
        "create decode/0",
    ]


class TestMoney:
    def test_calls_of_unknown_outcome_count(self) -> None:
        made = plan(want(fleet()), Observed(HEALTHY, pending_usd_per_hour=Decimal(41)), NOW)
        assert made.usd_per_hour_now == made.usd_per_hour_after == 101

    def test_over_the_hourly_budget_is_refused(self) -> None:
        made = plan(want(fleet(budget={"max_usd_per_hour": 69})), Observed(offers=ENOUGH), NOW)
        assert made.refusal == "the fleet would cost $70.00/h, over budget.max_usd_per_hour $69.00"

    def test_exactly_the_hourly_budget_is_allowed(self) -> None:
        made = plan(want(fleet(budget={"max_usd_per_hour": 70})), Observed(offers=ENOUGH), NOW)
        assert made.refusal is None

    def test_a_total_that_is_gone_before_the_fleet_is_ready_is_refused(self) -> None:
        wanted = want(fleet(budget={"max_usd_total": 100}))
        assert plan(wanted, Observed(offers=ENOUGH, spent_usd=Decimal(90)), NOW).refusal is None
        spent = plan(wanted, Observed(offers=ENOUGH, spent_usd=Decimal("99")), NOW)
        assert spent.refusal is not None
        assert "budget.max_usd_total $100.00" in spent.refusal

    def test_a_fleet_over_budget_may_still_shrink(self) -> None:
        wanted = want(fleet(budget={"max_usd_per_hour": 10}))
        made = plan(wanted, Observed([*HEALTHY, node("decode/1")]), NOW)
        assert made.refusal is None


class TestTime:
    def test_ready_is_boot_and_work_over_the_time_scale(self) -> None:
        made = plan(want(fleet(), time_scale=10), Observed(offers=ENOUGH), NOW)
        assert made.seconds_to_ready == 28

    def test_later_decode_nodes_wait_for_the_one_that_converts(self) -> None:
        wanted = want(fleet(2, 2))
        slow = {**wanted.durations, NodeName("decode", 0): 8000.0}
        made = plan(want(fleet(2, 2)).__class__(**{**vars(wanted), "durations": slow}), Observed(offers=ENOUGH), NOW)
        ready = {str(action.node): action.seconds_to_ready for action in made.actions}
        assert ready == {"prefill/0": 280, "prefill/1": 280, "decode/0": 8180, "decode/1": 8180}

    def test_a_node_in_place_needs_no_boot(self) -> None:
        made = plan(want(fleet()), Observed([node("prefill/0"), node("decode/0", serving=Serving.SICK)]), NOW)
        assert made.seconds_to_ready == 100


class TestWithoutOffers:
    def test_nothing_is_created_and_the_problem_says_what_is_missing(self) -> None:
        made = plan(want(fleet()), Observed(offers=market(offer(H200))), NOW)
        assert steps(made) == ["create prefill/0"]
        assert made.refusal == ("mock: not every node can be rented (east: 1 of 1 B200:8 for decode missing)")

    def test_what_is_broken_still_ends(self) -> None:
        lost = node("decode/0", state=InstanceState.PREEMPTED)
        made = plan(want(fleet()), Observed([node("prefill/0"), lost]), NOW)
        assert steps(made) == ["terminate decode/0", "keep prefill/0"]
        assert made.refusal is not None


def test_more_nodes_than_the_budget_allows_are_refused_before_any_is_rented() -> None:
    made = plan(want(fleet(budget={"max_nodes": 1})), Observed(offers=ENOUGH), NOW)
    assert made.refusal == "the file asks for 2 nodes, and budget.max_nodes is 1"
    assert plan(want(fleet(budget={"max_nodes": 2})), Observed(offers=ENOUGH), NOW).refusal is None


def test_required_rdma_refuses_nodes_in_two_places() -> None:
    pools = {"prefill": {"region": "east"}, "decode": {"region": "west"}}
    offers = market(offer(H200, region="east"), offer(B200, region="west"))
    apart = want(fleet(pools=pools, network={"rdma": "required"}))
    assert "2 places (mock east, mock west)" in (plan(apart, Observed(offers=offers), NOW).refusal or "")
    preferred = want(fleet(pools=pools))
    assert plan(preferred, Observed(offers=offers), NOW).refusal is None


def test_roles_are_told() -> None:
    made = plan(want(fleet(pools={"fast": {"gpu": "B200:8", "count": 1, "role": "decode"}})), Observed(), NOW)
    assert not made.actions
    assert "B200:8 for fast missing" in (made.refusal or "")
    named = plan(want(fleet()), Observed(offers=market(offer(H200), offer(B200))), NOW)
    assert [action.role for action in named.actions] == [Role.PREFILL, Role.DECODE]


@pytest.mark.parametrize(
    "worse",
    [
        {"state": InstanceState.PREEMPTED},
        {"gpu": GpuShape("H100", 8)},
    ],
)
def test_a_rental_that_could_serve_is_worth_more_than_one_that_cannot(worse: dict[str, object]) -> None:
    for ids in (("i-a", "i-b"), ("i-b", "i-a")):
        good = node("decode/0", instance_id=ids[0], serving=Serving.SICK)
        bad = node("decode/0", **{"instance_id": ids[1], **worse})
        made = plan(want(fleet()), Observed([bad, good, node("prefill/0")], ENOUGH), NOW)
        assert steps(made) == ["terminate decode/0", "update decode/0", "keep prefill/0"]
        assert made.actions[0].instance_id == ids[1]


def test_a_rental_that_was_never_brought_up_is_not_taken_for_ready() -> None:
    made = plan(want(fleet()), Observed([node("prefill/0"), node("decode/0", settings={})]), NOW)
    assert steps(made) == ["update decode/0", "keep prefill/0"]


def test_hardware_is_compared_with_the_rental_not_with_old_settings() -> None:
    old = {**settings(NodeName("decode", 0)), "region": "", "gpu": "b200:8"}
    made = plan(want(fleet()), Observed([node("prefill/0"), node("decode/0", settings=old)]), NOW)
    assert not made.changes
