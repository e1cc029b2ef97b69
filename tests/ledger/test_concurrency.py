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


WRITER = """
import sys
from gpufleet.ledger.store import Store
with Store.open(sys.argv[1]) as store:
    for number in range(100):
        store.log_event("f", None, f"{sys.argv[2]}-{number}")
"""


def test_processes_write_at_once_and_lose_nothing(location: Path | str) -> None:
    Store.open(location).close()
    names = ["a", "b", "c"]
    running = [subprocess.Popen([sys.executable, "-c", WRITER, str(location), name]) for name in names]
    assert [process.wait(120) for process in running] == [0, 0, 0]
    with Store.open(location) as store:
        kinds = [event.kind for event in store.events("f")]
    for name in names:
        assert [k for k in kinds if k.startswith(name)] == [f"{name}-{n}" for n in range(100)]
