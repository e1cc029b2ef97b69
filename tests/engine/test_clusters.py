"""Nodes that are rented as a whole: all or none, and never one of them alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpufleet.domain.market import ExtraKind, Inventory, OfferQuery
from gpufleet.domain.nodes import NodeName
from gpufleet.engine.clusters import WantedCluster, rent_cluster
from gpufleet.engine.listing import Listing
from gpufleet.engine.observe import plan_now
from gpufleet.engine.quotes import note_offers
from gpufleet.engine.release import confirm_gone, decide_end
from gpufleet.engine.session import Session
from gpufleet.engine.sweep import sweep
from gpufleet.errors import NodeFailed
from gpufleet.ledger.records import IntentState, ObligationState, Rental
from gpufleet.planning.model import ActionKind
from gpufleet.providers.base import Cluster, RentsClusters
from gpufleet.providers.errors import CapacityError, PriceChanged
from tests.engine.described import Market, Quick, described_market
from tests.engine.market import take_the_place_of
from tests.providers.fakes.backend import Answer, Call
from tests.providers.fakes.runpod import Runpod
from tests.providers.fakes.verda import Verda
from tests.providers.places import PUBLIC_KEY

NODES = (NodeName("prefill", 0), NodeName("native", 0))
MARKETS: dict[str, Any] = {"runpod": Runpod, "verda": Verda}
CREATES = {"runpod": ("POST", "/v2/clusters$"), "verda": ("POST", "/clusters$")}


@pytest.fixture(params=sorted(MARKETS))
def market(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Market]:
    backend = MARKETS[request.param]()
    with described_market(request.param, backend, tmp_path, monkeypatch, network={"rdma": "required"}) as made:
        yield made


def rent_here(session: Session) -> dict[NodeName, Rental]:
    provider = session.provider_named(session.fleet.provider.use)
    session.account(provider)
    offer = next(o for o in provider.offers(OfferQuery()) if o.cluster and o.gpu.model == "H200")
    wanted = WantedCluster(NODES, offer, offer.usd_per_hour, disk_gb=100, deadline_at=None, ssh_public_key=PUBLIC_KEY)
    return rent_cluster(session, provider, Listing(provider), wanted)


def end_everything(session: Session) -> None:
    for owed in session.store.open_obligations("test"):
        session.store.oblige(owed.provider, owed.ref, fleet="test", reason="test", kind=owed.kind)
    confirm_gone(session, give_up=20.0)
    assert session.store.open_obligations() == []


def left(market: Market) -> list[str]:
    clusters = [c.id for c in market.backend.clusters.values() if not c.ended] if market.name == "verda" else []  # type: ignore[attr-defined]
    return [*market.left(), *clusters]


def test_all_members_come_with_their_ranks_and_go_with_the_cluster(market: Market) -> None:
    with market.session() as session:
        rentals = rent_here(session)
        assert set(rentals) == set(NODES)
        assert [rentals[node].rank for node in NODES] == [0, 1]
        assert len({r.cluster_id for r in rentals.values()}) == 1
        assert not any(r.duplicate for r in rentals.values())
        decide_end(session, rentals[NODES[1]], "one of them")
        instances = [o for o in session.store.open_obligations("test") if o.kind in {"instance", "cluster", "volume"}]
        assert {o.state for o in instances} == {ObligationState.ENDING}
        end_everything(session)
        assert left(market) == []


def test_members_behind_a_head_are_reached_through_it(market: Market) -> None:
    with market.session() as session:
        rentals = rent_here(session)
        provider = session.provider_named(market.name)
        for rental in rentals.values():
            for _ in range(4):
                instance = provider.get(rental.instance_id)
            assert instance.ssh is not None
            assert (instance.ssh.jump is not None) is (market.name == "verda")
            assert instance.private_ip
        end_everything(session)


def test_a_lost_answer_is_found_by_name_and_rented_once(market: Market) -> None:
    def lose(call: Call) -> Answer:
        assert market.backend.answer(call).status < 300
        return Answer(504, "gateway timeout")

    market.backend.faults.append((*CREATES[market.name], lose))
    with market.session() as session:
        rent_here(session)
        assert [i.state for i in session.store.intents("test")] == [IntentState.FOUND]
        assert len(market.backend.clusters) == 1  # type: ignore[attr-defined]
        end_everything(session)
        assert left(market) == []


def test_one_that_was_presumed_absent_and_shows_up_late_is_taken_in_and_ended(market: Market) -> None:
    class Hiding(Quick):
        def clusters(self) -> list[Cluster]:
            return []

    def lose(call: Call) -> Answer:
        assert market.backend.answer(call).status < 300
        return Answer(504, "gateway timeout")

    market.backend.faults.append((*CREATES[market.name], lose))
    with market.session() as session:
        seen = session.provider_named(market.name)
        take_the_place_of(session, Hiding(seen.real))  # type: ignore[attr-defined]
        with pytest.raises(CapacityError, match="made nothing"):
            rent_here(session)
        take_the_place_of(session, seen)  # type: ignore[arg-type]
        assert session.store.doubtful_providers("test") == [market.name]
        sweep(session)
        assert {r.node for r in session.store.rentals("test")} == set(NODES)
        end_everything(session)
        assert left(market) == []


def test_one_that_is_dearer_than_agreed_is_ended(market: Market) -> None:
    class Dearer(Quick):
        def inventory(self) -> Inventory:
            listed = self.real.inventory()
            return replace(listed, instances=tuple(replace(i, usd_per_hour=Decimal(99)) for i in listed.instances))

    with market.session() as session:
        take_the_place_of(session, Dearer(session.provider_named(market.name).real))  # type: ignore[attr-defined]
        with pytest.raises(PriceChanged, match=r"its nodes cost \$99\.00/h"):
            rent_here(session)
        (cluster,) = [o for o in session.store.open_obligations("test") if o.kind == ExtraKind.CLUSTER]
        assert cluster.state is ObligationState.ENDING
        end_everything(session)
        assert left(market) == []


def test_no_capacity_is_told_and_nothing_is_owed(market: Market) -> None:
    with market.session() as session:
        rent_here(session)
        backend = market.backend
        backend.stock = dict.fromkeys(backend.stock, 0)
        provider = session.provider_named(market.name)
        offer = session.terms[next(iter(session.terms))]
        note_offers(session, provider, [offer])
        wanted = WantedCluster(NODES, offer, offer.usd_per_hour, 100, None, PUBLIC_KEY)
        with pytest.raises(CapacityError):
            rent_cluster(session, provider, Listing(provider), wanted)
        end_everything(session)


def test_a_run_killed_before_the_members_were_seen_is_gone_on_with(market: Market) -> None:
    with market.session() as session:
        rentals = rent_here(session)
        with session.store._db.write() as connection:
            from gpufleet.ledger.schema import OBLIGATIONS, RENTALS

            connection.execute(OBLIGATIONS.delete().where(OBLIGATIONS.c.kind == "instance"))
            connection.execute(RENTALS.delete())
    with market.session() as session:
        sweep(session)
        again = {r.node: r.instance_id for r in session.store.rentals("test")}
        assert again == {node: r.instance_id for node, r in rentals.items()}
        end_everything(session)
        assert left(market) == []


def test_a_cluster_that_does_not_come_whole_is_ended(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpufleet.engine import clusters

    monkeypatch.setattr(clusters, "_MEMBERS_SECONDS", 0.0)
    with market.session() as session:
        provider = session.provider_named(market.name)
        assert isinstance(provider, RentsClusters)
        monkeypatch.setattr(
            type(provider), "inventory", lambda self: replace(self.real.inventory(), instances=()), raising=False
        )
        with pytest.raises(NodeFailed, match="only 0 of 2"):
            rent_here(session)
        monkeypatch.undo()
        (cluster,) = [o for o in session.store.open_obligations("test") if o.kind == ExtraKind.CLUSTER]
        assert cluster.state is ObligationState.ENDING


def test_a_fleet_of_equal_nodes_on_one_fabric_is_planned_as_a_cluster(market: Market) -> None:
    with market.session() as session:
        plan = plan_now(session)
        assert [a.kind for a in plan.actions] == [ActionKind.CREATE] * 2
        offers = {a.offer.offer_id for a in plan.actions if a.offer and a.offer.cluster}
        assert len(offers) == 1
        assert plan.problems == ()


def test_one_node_of_a_cluster_cannot_end_alone(market: Market) -> None:
    with market.session() as session:
        rent_here(session)
    market.here.write(pools={"prefill": {"gpu": "H200:8", "count": 1}, "native": {"gpu": "B200:8", "count": 1}})
    with market.session() as session:
        sweep(session)
        (problem,) = [p for p in plan_now(session).problems if "same cluster" in p]
        assert problem.startswith("native/0 would end, and 1 other nodes")
        end_everything(session)
