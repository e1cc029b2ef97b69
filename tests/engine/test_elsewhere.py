"""A fleet whose offers are all refused before anything is rented is tried elsewhere, at what was agreed to."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from gpufleet.domain.nodes import NodeName
from gpufleet.engine.bringup import Target
from gpufleet.engine.elsewhere import plan_elsewhere
from gpufleet.engine.observe import plan_now
from gpufleet.engine.session import Session
from gpufleet.errors import NodeFailed
from gpufleet.planning.model import Plan
from gpufleet.providers.errors import CapacityError, QuotaError
from tests.engine.market import NODE, Place, end_all, place, rent_one

OTHER = NodeName("native", 0)
POOLS = ("prefill", "native")


def dear(here: Place) -> None:
    """The file allows more than the cheapest region costs."""
    pools = {pool: {"gpu": "H200:8", "count": 1, "max_usd_per_hour": 35} for pool in POOLS}
    here.write(pools=pools)


def targets(plan: Plan) -> dict[NodeName, Target]:
    return {a.node: Target(a.node, [a.offer], None, work=True) for a in plan.actions if a.offer}


def regions(plan: Plan | None) -> set[str]:
    return {a.offer.region for a in plan.actions if a.offer} if plan else set()


def elsewhere(session: Session, plan: Plan, failure: Exception, *nodes: NodeName) -> Plan | None:
    return plan_elsewhere(session, plan, targets(plan), {f"acquire {node}": failure for node in nodes or (NODE, OTHER)})


def test_without_stock_in_one_region_the_next_is_planned_within_the_files_limits(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        dear(here)
        told: list[str] = []
        with here.session() as session:
            session.sink = lambda progress: told.append(progress.message)
            plan = plan_now(session)
            assert regions(plan) == {"us-east"}
            other = elsewhere(session, plan, CapacityError("sold out"))
            assert regions(other) == {"us-west"}
            assert told == ["refused (sold out); going on at mock us-west for $59.20/h"]
            assert other is not None
            assert elsewhere(session, other, CapacityError("sold out")) is None


def test_nobody_pays_more_than_was_agreed_to(tmp_path: Path) -> None:
    with place(tmp_path) as here, here.session() as session:
        assert elsewhere(session, plan_now(session), CapacityError("sold out")) is None


def test_what_one_node_alone_was_refused_moves_all(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        dear(here)
        with here.session() as session:
            assert regions(elsewhere(session, plan_now(session), CapacityError("sold out"), OTHER)) == {"us-west"}


def test_a_quota_is_of_all_regions(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        dear(here)
        with here.session() as session:
            assert elsewhere(session, plan_now(session), QuotaError("limit")) is None
            assert not any(session.offers.values())


@pytest.mark.parametrize("failure", [NodeFailed("no GPUs"), ValueError("a fault of ours")])
def test_other_failures_are_told_and_nothing_is_tried(tmp_path: Path, failure: Exception) -> None:
    with place(tmp_path) as here:
        dear(here)
        with here.session() as session:
            assert elsewhere(session, plan_now(session), failure) is None


def test_a_fleet_of_which_something_is_rented_stays_there(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        dear(here)
        with here.session() as session:
            plan = plan_now(session)
            rent_one(session, limit=Decimal(35))
            assert elsewhere(session, plan, CapacityError("sold out"), OTHER) is None
            end_all(session)
