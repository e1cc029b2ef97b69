"""The file on disk: private, durable, and told about in words when something is wrong with it."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import event

from gpufleet.errors import StillBilling, UsageError
from gpufleet.ledger.errors import LedgerUnreadable, LedgerUnwritable
from gpufleet.ledger.schema import CURRENT_VERSION
from gpufleet.ledger.store import Store
from tests.ledger.builders import intent, rent


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_we_may_read_it(tmp_path: Path) -> None:
    state = tmp_path / "new" / "state"
    with Store.open(state) as store:
        rent(store)
        assert mode(state) == 0o700
        assert {path.name: mode(path) for path in state.iterdir()} == {
            "ledger.db": 0o600,
            "ledger.db-wal": 0o600,
            "ledger.db-shm": 0o600,
        }


def test_a_file_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    Store.open(file).close()
    file.chmod(0o644)
    Store.open(file).close()
    assert mode(file) == 0o600


@pytest.mark.parametrize("place", ["{dir}", "{dir}/ledger.db", "sqlite:///{dir}/ledger.db"])
def test_a_folder_a_file_and_a_url_name_the_same_ledger(tmp_path: Path, place: str) -> None:
    with Store.open(tmp_path) as store:
        rent(store)
    with Store.open(place.format(dir=tmp_path)) as again:
        assert len(again.rentals("f")) == 1


def test_commits_are_on_disk_and_rules_are_kept(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store, store._db.read() as connection:
        found = {p: connection.exec_driver_sql(f"PRAGMA {p}").scalar() for p in ("journal_mode", "synchronous")}
        assert found == {"journal_mode": "wal", "synchronous": 2}
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1


@pytest.mark.parametrize("place", ["mysql://h/d", "sqlite://", "sqlite:///:memory:", "://"])
def test_other_places_are_refused(place: str) -> None:
    with pytest.raises(UsageError):
        Store.open(place)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerUnwritable) as caught:
        Store.open(tmp_path / "file" / "state")
    assert str(tmp_path) in (caught.value.where or "")


@pytest.mark.parametrize("content", [b"this is no database, it is a letter" * 100, b"\x00" * 4096])
def test_a_file_that_is_no_ledger_may_hide_running_nodes(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ledger.db").write_bytes(content)
    with pytest.raises(StillBilling) as caught:
        Store.open(tmp_path)
    assert "console" in (caught.value.hint or "")
    assert (tmp_path / "ledger.db").read_bytes() == content


def test_a_damaged_file_may_hide_running_nodes(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    with Store.open(file) as store:
        for number in range(200):
            store.open_intent(intent(f"gf-{number}"))
    content = bytearray(file.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    file.write_bytes(bytes(content))
    with pytest.raises(LedgerUnreadable, match="damaged"), Store.open(file) as store:
        store.intents("f")


def test_a_value_that_gpufleet_never_writes_is_told(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        rent(store)
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as raw, raw:
            raw.execute("update rentals set state = 'asleep'")
        with pytest.raises(LedgerUnreadable, match="asleep"):
            store.rentals("f")


def test_a_ledger_of_a_later_gpufleet_is_not_touched(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as raw, raw:
        raw.execute("update schema_version set version = ?", (CURRENT_VERSION + 1,))
    with pytest.raises(LedgerUnreadable) as caught:
        Store.open(tmp_path)
    assert caught.value.hint == "upgrade gpufleet"


def test_a_read_only_ledger_is_told(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    with (
        pytest.raises(LedgerUnwritable, match="read-only"),
        Store.open(f"sqlite:///file:{tmp_path}/ledger.db?mode=ro&uri=true") as store,
    ):
        store.open_intent(intent())


def test_a_ledger_that_another_process_locks_is_told(tmp_path: Path) -> None:
    with Store.open(tmp_path, busy_seconds=0.05) as store, closing(sqlite3.connect(tmp_path / "ledger.db")) as other:
        other.execute("begin immediate")
        with pytest.raises(LedgerUnwritable, match="locked by another process"):
            store.open_intent(intent())
        other.rollback()
        store.open_intent(intent())
        assert len(store.open_intents("f")) == 1


@contextmanager
def full_disk(store: Store) -> Iterator[None]:
    """SQLite refuses to grow the file, as it does when the disk is full."""

    def limit(connection: object) -> None:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()  # type: ignore[attr-defined]
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")  # type: ignore[attr-defined]

    event.listen(store._db._engine, "begin", limit)
    try:
        yield
    finally:
        event.remove(store._db._engine, "begin", limit)


def test_a_full_disk_stops_before_money_is_spent_and_keeps_what_was_written(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        rent(store)
        with full_disk(store), pytest.raises(LedgerUnwritable, match="disk is full"):
            for number in range(2000):
                store.open_intent(intent(f"gf-{number}", offer_id="x" * 1000))
        kept = store.intents("f")
        assert all(record.intent.key != "gf-1999" for record in kept)
        assert len(store.rentals("f")) == 1


def test_an_error_in_the_middle_of_a_write_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path) as store:
        store.open_intent(intent())
        monkeypatch.setattr(Store, "_settle_with_rental", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            rent(store, "gf-f-9")
        assert store.rentals("f") == []
        assert store.open_obligations() == []


def test_the_ledger_brings_no_heavy_imports() -> None:
    code = (
        "import sys, gpufleet.ledger.store, gpufleet.ledger.lock, gpufleet.ledger.costs;"
        "print(sorted({'paramiko', 'httpx', 'rich', 'psycopg', 'cryptography'} & set(sys.modules)))"
    )
    seen = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert seen.stdout.strip() == "[]"
