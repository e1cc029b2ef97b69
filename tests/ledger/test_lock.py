"""One run per fleet; a second one is told who holds it."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpufleet.errors import FleetBusy
from gpufleet.ledger.errors import LedgerUnwritable
from gpufleet.ledger.lock import fleet_lock, holder
from gpufleet.ledger.store import Store

HOLD = """
import sys
from gpufleet.ledger.lock import fleet_lock
with fleet_lock(sys.argv[1], "f", command="up"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def other_process_holds(location: Path | str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLD, str(location)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        try:
            yield other
        finally:
            other.kill()


def test_a_free_fleet_has_no_holder(location: Path | str) -> None:
    assert holder(location, "f") is None
    with fleet_lock(location, "f", command="up"):
        pass
    assert holder(location, "f") is None


def test_a_second_run_is_told_who_holds_it_and_what_to_do(location: Path | str) -> None:
    with other_process_holds(location) as other:
        with pytest.raises(FleetBusy) as caught, fleet_lock(location, "f", command="down"):
            pytest.fail("two runs at once")
        assert f"`gpufleet up` (process {other.pid} on {socket.gethostname()}), since 20" in caught.value.message
        assert caught.value.hint == f"wait until it ends, or stop it with: kill {other.pid}"


def test_the_holder_can_be_read_while_it_runs(location: Path | str) -> None:
    with other_process_holds(location) as other:
        who = holder(location, "f")
        assert who is not None
        assert (who.pid, who.command) == (other.pid, "up")


@pytest.mark.report("framework 24194")
def test_a_killed_run_holds_nothing(location: Path | str) -> None:
    with other_process_holds(location) as other:
        other.send_signal(signal.SIGKILL)
        other.wait(30)
        with fleet_lock(location, "f", command="up", wait=30):
            assert holder(location, "f") is not None


def test_a_run_waits_for_the_other_to_end(location: Path | str) -> None:
    with other_process_holds(location) as other:
        assert other.stdin is not None
        waiter = threading.Timer(0.2, other.stdin.close)
        waiter.start()
        with fleet_lock(location, "f", command="up", wait=60):
            who = holder(location, "f")
        waiter.join()
    assert who is not None
    assert who.pid == os.getpid()


def test_fleets_do_not_hold_each_other(location: Path | str) -> None:
    with fleet_lock(location, "f", command="up"), fleet_lock(location, "g", command="up"):
        assert holder(location, "g") is not None


def test_the_same_process_cannot_take_it_twice(location: Path | str) -> None:
    with fleet_lock(location, "f", command="up"), pytest.raises(FleetBusy), fleet_lock(location, "f", command="up"):
        pytest.fail("two runs at once")


def test_it_is_free_again_after_an_error(location: Path | str) -> None:
    with pytest.raises(KeyError), fleet_lock(location, "f", command="up"):
        raise KeyError
    assert holder(location, "f") is None


@contextmanager
def somebody_looks(location: Path) -> Iterator[int]:
    """The instant in which `holder` has the lock shared."""
    holder(location, "f")
    looking = os.open(location / "locks" / "f.lock", os.O_RDWR)
    fcntl.flock(looking, fcntl.LOCK_SH)
    try:
        yield looking
    finally:
        os.close(looking)


def test_two_who_look_do_not_see_each_other(tmp_path: Path) -> None:
    with somebody_looks(tmp_path):
        assert holder(tmp_path, "f") is None


def test_a_look_never_makes_a_run_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with somebody_looks(tmp_path) as looking:
        monkeypatch.setattr("gpufleet.ledger.lock.time.sleep", lambda _: fcntl.flock(looking, fcntl.LOCK_UN))
        with fleet_lock(tmp_path, "f", command="up"):
            pass


def test_a_half_written_signature_is_no_error(tmp_path: Path) -> None:
    with fleet_lock(tmp_path, "f", command="up"):
        (tmp_path / "locks" / "f.lock").write_text('{"pid": 1')
        with pytest.raises(FleetBusy, match="unknown host"), fleet_lock(tmp_path, "f", command="up"):
            pytest.fail("two runs at once")


def test_a_folder_that_takes_no_lock_is_told(tmp_path: Path) -> None:
    (tmp_path / "locks").write_text("in the way")
    with pytest.raises(LedgerUnwritable, match="cannot be locked"), fleet_lock(tmp_path, "f", command="up"):
        pytest.fail("no lock")


def test_lock_and_ledger_live_side_by_side(tmp_path: Path) -> None:
    with fleet_lock(tmp_path, "f", command="up"), Store.open(tmp_path) as store:
        store.begin_run("f", "up")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ledger.db", "locks"]


def test_a_server_that_is_away_is_told_without_its_password(tmp_path: Path) -> None:
    url = f"postgresql://u:s3cret@/db?host={tmp_path}"
    for act in (lambda: Store.open(url), lambda: holder(url, "f")):
        with pytest.raises(LedgerUnwritable) as caught:
            act()
        assert "s3cret" not in f"{caught.value.message} {caught.value.where} {caught.value.hint}"
