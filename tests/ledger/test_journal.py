"""Fleets, accounts, events and runs."""

from __future__ import annotations

import pytest

from gpufleet.domain.nodes import NodeName
from gpufleet.ledger.errors import LedgerConflict
from gpufleet.ledger.store import Store
from tests.ledger.builders import confirm_gone, rent


def test_a_fleet_file_is_remembered_and_replaced(store: Store) -> None:
    store.save_fleet("f", "name: f", "/a/fleet.yaml")
    store.save_fleet("f", "name: f # new", "/b/fleet.yaml")
    (fleet,) = store.fleets()
    assert (fleet.spec_text, fleet.spec_path) == ("name: f # new", "/b/fleet.yaml")
    assert store.fleet("f") == fleet
    assert store.fleet("g") is None


def test_other_credentials_are_refused_while_something_is_open(store: Store) -> None:
    store.bind_account("f", "mock", "acct")
    rent(store)
    store.bind_account("f", "mock", "acct")
    with pytest.raises(LedgerConflict, match="acct-2"):
        store.bind_account("f", "mock", "acct-2")
    confirm_gone(store)
    store.bind_account("f", "mock", "acct-2")
    assert store.account_of("f", "mock") == "acct-2"


def test_events_come_back_in_order(store: Store) -> None:
    store.log_event("f", NodeName("decode", 0), "drained", {"by": "down"})
    store.log_event("f", None, "done")
    assert [(e.kind, e.node, dict(e.data)) for e in store.events("f")] == [
        ("drained", NodeName("decode", 0), {"by": "down"}),
        ("done", None, {}),
    ]
    assert [e.kind for e in store.events("f", limit=1)] == ["done"]


def test_every_step_of_a_rental_leaves_an_event(store: Store) -> None:
    rent(store)
    store.oblige("mock", "i-0", fleet="f", reason="down")
    confirm_gone(store)
    kinds = [event.kind for event in store.events("f")]
    assert kinds == ["intent-opened", "intent", "obligation", "rented", "intent", "obliged", "gone"]


def test_a_run_without_an_outcome_was_killed_or_still_runs(store: Store) -> None:
    first = store.begin_run("f", "up")
    store.begin_run("f", "down")
    store.end_run(first, "ok")
    assert [(run.command, run.outcome) for run in store.runs("f")] == [("up", "ok"), ("down", None)]
