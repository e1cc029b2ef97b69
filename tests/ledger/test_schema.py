"""Older ledgers become current ones, once, whoever opens them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from gpufleet.ledger import schema
from gpufleet.ledger.errors import LedgerUnreadable
from gpufleet.ledger.store import Store
from tests.ledger.builders import rent


def add_colour(connection: Connection) -> None:
    connection.execute(text("alter table fleets add column colour text"))


def test_steps_run_in_order_and_rentals_stay(store: Store) -> None:
    rent(store)
    seen: list[int] = []
    steps = {1: add_colour, 2: lambda _: seen.append(2)}
    with store._db.write() as connection:
        schema.migrate(connection, steps, current=3)
        assert schema.version_of(connection) == 3
        connection.execute(text("select colour from fleets"))
    assert seen == [2]
    assert len(store.rentals("f")) == 1


def test_a_step_that_fails_leaves_the_old_version(store: Store) -> None:
    def fail(connection: Connection) -> None:
        add_colour(connection)
        raise RuntimeError

    with pytest.raises(RuntimeError), store._db.write() as connection:
        schema.migrate(connection, {1: fail}, current=2)
    with store._db.write() as connection:
        assert schema.version_of(connection) == 1
        add_colour(connection)


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
