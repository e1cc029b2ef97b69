"""A look at the fleet asks for one listing, and writes down what is new and nothing else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gpufleet.domain.market import InstanceState, Inventory
from gpufleet.domain.nodes import NodeName
from gpufleet.engine.refresh import refresh
from gpufleet.engine.session import Session
from gpufleet.engine.sweep import sweep
from gpufleet.ledger.database import Database
from tests.engine.market import Odd, end_all, place, provider_of, rent_one, take_the_place_of
from tests.providers.places import eventually


class Counting(Odd):
    """The market, and how often it was asked."""

    calls: Counter[str]

    def inventory(self) -> Inventory:
        self.calls["inventory"] += 1
        return self.real.inventory()

    def get(self, instance_id: str) -> Any:
        self.calls["get"] += 1
        return self.real.get(instance_id)


def counted(session: Session, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts list calls, reads by id and write transactions from here on."""
    counting = Counting(provider_of(session))
    counting.calls = Counter()
    take_the_place_of(session, counting)
    write = Database.write

    def noted(self: Database) -> Any:
        counting.calls["write"] += 1
        return write(self)

    monkeypatch.setattr(Database, "write", noted)
    return counting.calls


def all_running(session: Session) -> None:
    """Look until nothing boots any more: a node that starts is news."""

    def running() -> bool:
        refresh(session)
        return all(r.state is InstanceState.RUNNING for r in session.store.rentals("test"))

    eventually(running)


def test_a_look_without_news_is_one_listing_and_no_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with place(tmp_path) as here, here.session() as session:
        for node in (NodeName("prefill", 0), NodeName("native", 0)):
            rent_one(session, node=node)
        all_running(session)
        calls = counted(session, monkeypatch)
        refresh(session)
        sweep(session)
        assert calls == {"inventory": 2}
        end_all(session)


def test_a_volume_that_is_owed_already_is_no_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with place(tmp_path, volumes=True) as here, here.session() as session:
        rental = rent_one(session)
        assert len(session.store.open_obligations("test")) == 2
        all_running(session)
        calls = counted(session, monkeypatch)
        (listed,) = refresh(session)["mock"].inventory().instances
        assert (listed.instance_id, len(listed.extras)) == (rental.instance_id, 1)
        assert calls == {"inventory": 1}
        end_all(session)
