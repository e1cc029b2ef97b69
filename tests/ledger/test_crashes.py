"""A process killed at any write leaves a ledger that says the truth about money."""

from __future__ import annotations

import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from gpufleet.ledger.records import IntentState, ObligationState
from gpufleet.ledger.store import Store

STORY = """
import os, signal, sys
from contextlib import contextmanager
from gpufleet.domain.status import Serving
from gpufleet.ledger.database import Database
from gpufleet.ledger.store import Store
from tests.ledger.builders import instance, intent

place, when, target = sys.argv[1], sys.argv[2], int(sys.argv[3])
real_write, count = Database.write, 0

def die():
    os.kill(os.getpid(), signal.SIGKILL)

@contextmanager
def write(self):
    global count
    with real_write(self) as connection:
        yield connection
        count += 1
        if count == target and when == "before":
            die()
    if count == target and when == "after":
        die()

store = Store.open(place)
Database.write = write
store.open_intent(intent())
store.mark_sent("gf-f-0")
print("paid", flush=True)  # the provider has created it now
store.record_rental("gf-f-0", instance())
store.set_serving("mock", "i-0", Serving.READY, settings={"a": "b"})
owed = store.oblige("mock", "i-0", fleet="f", reason="down")
store.record_observation(owed.obligation_id, gone=True)
print("really gone", flush=True)
store.record_observation(owed.obligation_id, gone=True)
"""
WRITES = 7


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("target", range(1, WRITES + 1))
def test_a_kill_at_any_write_is_survived(tmp_path: Path, when: str, target: int) -> None:
    dead = subprocess.run(
        [sys.executable, "-c", STORY, str(tmp_path), when, str(target)], check=False, capture_output=True, text=True
    )
    assert dead.returncode == -signal.SIGKILL, dead.stderr
    written = target if when == "after" else target - 1
    with Store.open(tmp_path) as store:
        check_what_is_known(store, written)
        if "paid" in dead.stdout and written < WRITES:
            assert store.open_obligations("f") or store.open_intents("f"), "a paid node was lost"
        finish(store)
        assert store.open_intents("f") == []
        assert store.open_obligations("f") == []


def check_what_is_known(store: Store, written: int) -> None:
    states = [record.state for record in store.intents("f")]
    expected = [IntentState.PREPARED, IntentState.SENT] + [IntentState.CREATED] * 5
    assert states == expected[written - 1 : written] if written else states == []
    assert len(store.rentals("f", live_only=False)) == (1 if written >= 3 else 0)
    assert store.pending_usd_per_hour("f") == (Decimal("41.50") if written in {1, 2} else 0)
    assert bool(store.open_obligations("f")) is (3 <= written < WRITES)


def finish(store: Store) -> None:
    """What the next run does: clear up unclear calls, then look until all is gone."""
    for record in store.open_intents("f"):
        sent = record.state is not IntentState.PREPARED
        store.settle_intent(record.intent.key, IntentState.PRESUMED_ABSENT if sent else IntentState.NOT_SENT)
    for owed in store.open_obligations("f"):
        store.oblige(owed.provider, owed.ref, fleet="f", reason="down")
        while store.record_observation(owed.obligation_id, gone=True).state is not ObligationState.GONE:
            pass
