"""Older ledgers become current ones, once, whoever opens them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from gpufleet.domain.nodes import NodeName
from gpufleet.ledger import schema
from gpufleet.ledger.errors import LedgerUnreadable
from gpufleet.ledger.store import Store
from tests.ledger.builders import rent


def add_colour(connection: Connection) -> None:
    connection.execute(text("alter table fleets add column colour text"))


def test_steps_run_in_order_and_rentals_stay(store: Store) -> None:
    rent(store)
    seen: list[int] = []
    now = schema.CURRENT_VERSION
    steps = {now: add_colour, now + 1: lambda _: seen.append(2)}
    with store._db.write() as connection:
        schema.migrate(connection, steps, current=now + 2)
        assert schema.version_of(connection) == now + 2
        connection.execute(text("select colour from fleets"))
    assert seen == [2]
    assert len(store.rentals("f")) == 1


def test_a_step_that_fails_leaves_the_old_version(store: Store) -> None:
    def fail(connection: Connection) -> None:
        add_colour(connection)
        raise RuntimeError

    with pytest.raises(RuntimeError), store._db.write() as connection:
        schema.migrate(connection, {schema.CURRENT_VERSION: fail}, current=schema.CURRENT_VERSION + 1)
    with store._db.write() as connection:
        assert schema.version_of(connection) == schema.CURRENT_VERSION
        add_colour(connection)


_NEW_IN_2 = {
    "intents": ("kind", "members", "runtime", "seen_before"),
    "rentals": ("runtime", "cluster_id", "rank", "expires_at"),
    "obligations": ("parent", "usd_per_hour"),
}


def _back_to_version_2(connection: Connection) -> None:
    for column in ("running", "asked", "asked_at"):
        connection.execute(text(f"alter table fleets drop column {column}"))
    connection.execute(text("update schema_version set version = 2"))


def test_a_fleet_of_version_2_that_has_rentals_is_to_run(location: Path | str) -> None:
    with Store.open(location) as store:
        rent(store)
        for name in ("f", "idle"):
            store.save_fleet(name, "text", "fleet.yaml")
        with store._db.write() as connection:
            _back_to_version_2(connection)
    with Store.open(location) as store:
        assert {fleet.name: fleet.running for fleet in store.fleets()} == {"f": True, "idle": False}


def _back_to_version_1(connection: Connection) -> None:
    for table, columns in _NEW_IN_2.items():
        for column in columns:
            connection.execute(text(f"alter table {table} drop column {column}"))
    _back_to_version_2(connection)
    connection.execute(text("drop table facts"))
    connection.execute(text("update schema_version set version = 1"))


def test_a_ledger_of_version_1_keeps_its_rentals_and_takes_new_ones(location: Path | str) -> None:
    with Store.open(location) as store:
        old = rent(store)
        with store._db.write() as connection:
            _back_to_version_1(connection)
    with Store.open(location) as store:
        assert store.rentals("f") == [old]
        assert store.rental("mock", "i-0") == old
        assert [o.parent for o in store.open_obligations("f")] == [None]
        assert len(store.owner_id()) == 4
        new = rent(store, "gf-f-1", "i-1", node=NodeName("decode", 1), cluster_id="c-1")
        assert new.cluster_id == "c-1"


def test_every_version_has_a_step() -> None:
    assert set(schema.MIGRATIONS) == set(range(1, schema.CURRENT_VERSION))


def test_a_ledger_without_a_version_is_refused(store: Store) -> None:
    with store._db.write() as connection:
        connection.execute(text("delete from schema_version"))
    with pytest.raises(LedgerUnreadable), store._db.read() as connection:
        schema.version_of(connection)


def test_processes_that_open_a_new_ledger_at_once_all_succeed(location: Path | str) -> None:
    code = "import sys; from gpufleet.ledger.store import Store; Store.open(sys.argv[1]).begin_run('f', 'up')"
    running = [subprocess.Popen([sys.executable, "-c", code, str(location)]) for _ in range(6)]
    assert [process.wait(60) for process in running] == [0] * 6
    with Store.open(location) as store:
        assert len(store.runs("f")) == 6
