"""Many nodes come up at once."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpufleet.domain.nodes import NodeName
from gpufleet.domain.status import Serving
from gpufleet.ledger.store import Store
from tests.ledger.builders import confirm_gone, rent


def live(store: Store, number: int) -> None:
    """One node's whole life."""
    rent(store, f"gf-f-{number}", f"i-{number}", node=NodeName("decode", number))
    store.set_serving("mock", f"i-{number}", Serving.READY, settings={"n": str(number)})
    store.log_event("f", NodeName("decode", number), "step", {"n": number})
    assert store.rentals("f")
    store.oblige("mock", f"i-{number}", fleet="f", reason="down")
    confirm_gone(store, f"i-{number}")


def test_fifty_threads_write_and_read_at_once(store: Store) -> None:
    with ThreadPoolExecutor(50) as pool:
        list(pool.map(lambda number: live(store, number), range(50)))
    rentals = store.rentals("f", live_only=False)
    assert sorted(int(r.settings["n"]) for r in rentals) == list(range(50))
    assert not any(r.live for r in rentals)
    assert store.open_obligations() == []
    assert store.open_intents("f") == []


def test_threads_wait_for_each_other_in_turn_and_not_by_luck(tmp_path: Path) -> None:
    with Store.open(tmp_path, busy_seconds=0) as store, ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda number: live(store, number), range(20)))
        assert store.open_obligations() == []


WRITER = """
import sys
from gpufleet.ledger.store import Store
from tests.ledger.builders import rent
with Store.open(sys.argv[1]) as store:
    for number in range(40):
        name = f"{sys.argv[2]}-{number}"
        rent(store, name, name)
"""


def test_processes_write_at_once_and_lose_nothing(location: Path | str) -> None:
    Store.open(location).close()
    names = ["a", "b", "c"]
    running = [subprocess.Popen([sys.executable, "-c", WRITER, str(location), name]) for name in names]
    assert [process.wait(120) for process in running] == [0, 0, 0]
    with Store.open(location) as store:
        assert {r.key for r in store.rentals("f")} == {f"{name}-{n}" for name in names for n in range(40)}
        assert len(store.open_obligations("f")) == 120
