"""Any order of calls, checked against a model that knows what really runs at the provider."""

from __future__ import annotations

import shutil
import tempfile
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from gpufleet.domain.market import InstanceState
from gpufleet.ledger.costs import bill
from gpufleet.ledger.errors import LedgerConflict
from gpufleet.ledger.records import IntentState, ObligationState
from gpufleet.ledger.store import Store
from tests.ledger.builders import instance, intent
from tests.ledger.conftest import Clock

NO_RENTAL = st.sampled_from([IntentState.REFUSED, IntentState.NOT_SENT])


class LedgerMachine(RuleBasedStateMachine):
    """``running`` is what the provider bills; only an observed end may remove anything from the ledger's open list."""

    prepared = Bundle("prepared")
    sent = Bundle("sent")
    rented = Bundle("rented")

    @initialize()
    def open_ledger(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gf-ledger-"))
        self.clock = Clock()
        self.store = Store.open(self.folder, clock=self.clock)
        self.number = 0
        self.running: set[str] = set()
        self.owed_ids: set[int] = set()
        self.total = Decimal(0)

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @rule(target=prepared)
    def prepare(self) -> str:
        self.number += 1
        self.store.open_intent(intent(f"gf-{self.number}"))
        return f"gf-{self.number}"

    @rule(target=sent, key=consumes(prepared))
    def send(self, key: str) -> str:
        self.store.mark_sent(key)
        return key

    @rule(target=rented, key=consumes(sent), copies=st.integers(1, 2))
    def create(self, key: str, copies: int) -> object:
        made = [f"i-{key}-{copy}" for copy in range(copies)]
        for instance_id in made:
            self.running.add(instance_id)
            self.store.record_rental(key, instance(instance_id, key, created_at=self.clock.now))
        return multiple(*made)

    @rule(key=consumes(sent), outcome=NO_RENTAL)
    def refuse(self, key: str, outcome: IntentState) -> None:
        self.store.settle_intent(key, outcome, "no")

    @rule(target=sent, key=consumes(sent), later=st.sampled_from([IntentState.AMBIGUOUS, IntentState.PRESUMED_ABSENT]))
    def lose_the_answer(self, key: str, later: IntentState) -> str:
        self.store.settle_intent(key, later)
        return key

    @rule(key=sent)
    def send_twice(self, key: str) -> None:
        with pytest.raises(LedgerConflict):
            self.store.mark_sent(key)

    @rule(ref=rented)
    def decide_the_end(self, ref: str) -> None:
        self.store.oblige("mock", ref, fleet="f", reason="down")

    @rule(ref=rented)
    def the_provider_ends_it(self, ref: str) -> None:
        self.running.discard(ref)

    @rule(ref=rented)
    def look(self, ref: str) -> None:
        """A truthful look."""
        for owed in self.store.open_obligations():
            if owed.ref == ref:
                self.store.record_observation(owed.obligation_id, gone=ref not in self.running)

    @rule(ref=rented)
    def fail_to_look(self, ref: str) -> None:
        for owed in self.store.open_obligations():
            if owed.ref == ref:
                self.store.record_observation(owed.obligation_id, gone=False, error="503")

    @rule(ref=rented)
    def refresh(self, ref: str) -> None:
        state = InstanceState.RUNNING if ref in self.running else InstanceState.TERMINATED
        self.store.update_rental(instance(ref, state=state))

    @rule(seconds=st.integers(0, 5000))
    def time_passes(self, seconds: int) -> None:
        self.clock.pass_seconds(seconds)

    @rule()
    def crash_and_reopen(self) -> None:
        self.store.close()
        self.store = Store.open(self.folder, clock=self.clock)

    @invariant()
    @precondition(lambda self: hasattr(self, "store"))
    def everything_that_runs_is_owed(self) -> None:
        assert self.running <= {owed.ref for owed in self.store.open_obligations()}
        assert self.running <= {rental.instance_id for rental in self.store.rentals("f")}

    @invariant()
    @precondition(lambda self: hasattr(self, "store"))
    def no_obligation_disappears_and_none_closes_without_two_looks(self) -> None:
        known = {owed.obligation_id: owed for owed in self.store.obligations("f")}
        assert self.owed_ids <= set(known)
        self.owed_ids = set(known)
        assert all(o.gone_observations >= 2 for o in known.values() if o.state is ObligationState.GONE)

    @invariant()
    @precondition(lambda self: hasattr(self, "store"))
    def the_bill_never_shrinks_as_time_passes(self) -> None:
        now = bill(self.store, "f", self.clock.now).total
        later = bill(self.store, "f", self.clock.now + timedelta(hours=1)).total
        assert 0 <= now <= later

    @invariant()
    @precondition(lambda self: hasattr(self, "store"))
    def unclear_calls_are_counted(self) -> None:
        assert self.store.pending_usd_per_hour("f") == Decimal("41.50") * len(self.store.open_intents("f"))


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
