"""What is rented as a whole, and what comes with an instance, ends with it."""

from __future__ import annotations

from decimal import Decimal

import pytest

from gpufleet.domain.market import Extra, ExtraKind, Runtime, SshEndpoint
from gpufleet.domain.nodes import NodeName
from gpufleet.ledger.errors import LedgerConflict
from gpufleet.ledger.records import IntentKind, IntentState, Obligation, ObligationState
from gpufleet.ledger.store import Store
from tests.ledger.builders import instance, intent, rent

NODES = (NodeName("prefill", 0), NodeName("decode", 0), NodeName("decode", 1))
DISK = Extra(ExtraKind.VOLUME, "v-1", "gf-f-0", Decimal("0.20"))


def rent_cluster(store: Store, key: str = "gf-f-0") -> None:
    store.open_intent(intent(key, node=NODES[0], kind=IntentKind.CLUSTER, members=NODES))
    store.mark_sent(key)
    store.record_cluster(key, "mock", "c-1")


def states(store: Store) -> dict[tuple[str, str], ObligationState]:
    return {(o.kind, o.ref): o.state for o in store.open_obligations("f")}


def owed(store: Store, ref: str) -> Obligation:
    return next(o for o in store.open_obligations("f") if o.ref == ref)


def test_an_unclear_cluster_counts_with_all_its_nodes(store: Store) -> None:
    store.open_intent(intent(node=NODES[0], kind=IntentKind.CLUSTER, members=NODES))
    assert store.pending_usd_per_hour("f") == 3 * Decimal("41.50")


def test_a_cluster_is_owed_before_its_members_are_known(store: Store) -> None:
    rent_cluster(store)
    assert states(store) == {("cluster", "c-1"): ObligationState.HELD}
    assert owed(store, "c-1").usd_per_hour == 3 * Decimal("41.50")
    assert store.open_intents("f") == []
    assert store.cluster_of("gf-f-0") == "c-1"


def test_members_take_their_nodes_by_rank_and_are_no_duplicates(store: Store) -> None:
    rent_cluster(store)
    for rank in (2, 0, 1):
        store.record_rental("gf-f-0", instance(f"m-{rank}", cluster_id="c-1", rank=rank))
    rentals = {r.node: r for r in store.rentals("f")}
    assert {node: r.instance_id for node, r in rentals.items()} == dict(zip(NODES, ("m-0", "m-1", "m-2"), strict=True))
    assert not any(r.duplicate for r in rentals.values())


def test_members_without_a_rank_take_the_nodes_in_order(store: Store) -> None:
    rent_cluster(store)
    made = [store.record_rental("gf-f-0", instance(f"m-{n}", cluster_id="c-1")).node for n in range(3)]
    assert made == list(NODES)


def test_a_second_instance_for_one_member_is_a_duplicate(store: Store) -> None:
    rent_cluster(store)
    store.record_rental("gf-f-0", instance("m-0", rank=0))
    assert store.record_rental("gf-f-0", instance("m-9", rank=0)).duplicate


@pytest.mark.parametrize(("kind", "ref"), [("instance", "m-1"), ("cluster", "c-1")])
def test_a_cluster_ends_with_any_of_its_members_and_they_with_it(store: Store, kind: str, ref: str) -> None:
    rent_cluster(store)
    for rank in range(3):
        store.record_rental("gf-f-0", instance(f"m-{rank}", cluster_id="c-1", rank=rank, extras=(DISK,) * (rank == 0)))
    store.oblige("mock", ref, fleet="f", reason="down", kind=kind)
    assert set(states(store).values()) == {ObligationState.ENDING}
    assert len(states(store)) == 5


def test_a_second_cluster_for_one_call_ends_at_once(store: Store) -> None:
    rent_cluster(store)
    store.record_cluster("gf-f-0", "mock", "c-2")
    assert states(store) == {("cluster", "c-1"): ObligationState.HELD, ("cluster", "c-2"): ObligationState.ENDING}
    assert store.cluster_of("gf-f-0") == "c-1"


@pytest.mark.report("skypilot 8004")
def test_an_extra_is_owed_with_its_instance_and_outlives_it(store: Store) -> None:
    rent(store, extras=(DISK,))
    assert states(store) == {("instance", "i-0"): ObligationState.HELD, ("volume", "v-1"): ObligationState.HELD}
    store.oblige("mock", "i-0", fleet="f", reason="down")
    assert states(store)["volume", "v-1"] is ObligationState.ENDING
    for _ in range(2):
        store.record_observation(owed(store, "i-0").obligation_id, gone=True)
    assert states(store) == {("volume", "v-1"): ObligationState.ENDING}


def test_an_extra_that_is_told_late_is_owed_too(store: Store) -> None:
    rent(store)
    store.oblige("mock", "i-0", fleet="f", reason="down")
    store.update_rental(instance(extras=(DISK,)))
    assert states(store)["volume", "v-1"] is ObligationState.ENDING
    assert owed(store, "v-1").parent == "i-0"


def test_a_rental_is_of_the_runtime_that_was_asked_for(store: Store) -> None:
    store.open_intent(intent(runtime=Runtime.INSIDE))
    store.mark_sent("gf-f-0")
    assert store.record_rental("gf-f-0", instance()).runtime is Runtime.INSIDE


def test_a_jump_host_is_kept(store: Store) -> None:
    ssh = SshEndpoint("10.0.0.2", host_key="ssh-ed25519 A", jump=SshEndpoint("203.0.113.9", user="root"))
    assert rent(store, ssh=ssh).ssh == ssh


def test_the_key_of_a_jump_host_is_pinned_for_the_life_of_the_rental(store: Store) -> None:
    ssh = SshEndpoint("10.0.0.2", jump=SshEndpoint("203.0.113.9"))
    rent(store, ssh=ssh)
    store.pin_jump_key("mock", "i-0", "ssh-ed25519 J")
    store.update_rental(instance(ssh=ssh, private_ip="10.0.0.3"))
    store.update_rentals([instance(ssh=ssh)], known=store.rentals("f"))
    (rental,) = store.rentals("f")
    assert rental.ssh is not None
    assert rental.ssh.jump == SshEndpoint("203.0.113.9", host_key="ssh-ed25519 J")
    with pytest.raises(LedgerConflict):
        store.pin_jump_key("mock", "i-0", "ssh-ed25519 K")


@pytest.mark.report("skypilot 3688")
def test_an_account_wide_thing_is_held_until_it_is_let_go(store: Store) -> None:
    store.hold("mock", "gf-f", fleet="f", reason="the fleet's SSH key", kind=ExtraKind.SSH_KEY)
    assert states(store) == {("ssh-key", "gf-f"): ObligationState.HELD}
    store.oblige("mock", "gf-f", fleet="f", reason="down", kind=ExtraKind.SSH_KEY)
    assert states(store) == {("ssh-key", "gf-f"): ObligationState.ENDING}


def test_ids_that_were_there_before_a_call_are_kept_with_it(store: Store) -> None:
    store.open_intent(intent(seen_before=("i-7", "i-8")))
    (record,) = store.intents("f", [IntentState.PREPARED])
    assert record.intent.seen_before == ("i-7", "i-8")


def test_a_ledger_has_one_owner_for_good(store: Store) -> None:
    assert store.owner_id() == store.owner_id()
