"""Short ways to say what was asked for and what came."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from gpufleet.domain.market import GpuShape, Instance, InstanceState, SshEndpoint
from gpufleet.domain.nodes import NodeName
from gpufleet.ledger.records import Intent, Rental
from gpufleet.ledger.store import Store

B200 = GpuShape("B200", 8)


def intent(key: str = "gf-f-0", **more: Any) -> Intent:
    values: dict[str, Any] = {
        "key": key,
        "fleet": "f",
        "node": NodeName("decode", 0),
        "provider": "mock",
        "account": "acct",
        "offer_id": "o-1",
        "gpu": B200,
        "usd_per_hour": Decimal("41.50"),
        "max_usd_per_hour": Decimal(45),
        "region": "east",
    }
    return Intent(**{**values, **more})


def instance(instance_id: str = "i-0", key: str = "gf-f-0", **more: Any) -> Instance:
    values: dict[str, Any] = {
        "provider": "mock",
        "instance_id": instance_id,
        "name": key,
        "state": InstanceState.BOOTING,
        "raw_state": "booting",
        "usd_per_hour": None,
    }
    return Instance(**{**values, **more})


def rent(store: Store, key: str = "gf-f-0", instance_id: str = "i-0", **more: Any) -> Rental:
    """A create call that went well."""
    terms = ("fleet", "node", "usd_per_hour", "billing_increment_s", "min_rental_s")
    names = {name: more.pop(name) for name in terms if name in more}
    store.open_intent(intent(key, **names))
    store.mark_sent(key)
    return store.record_rental(key, instance(instance_id, key, **more))


def confirm_gone(store: Store, instance_id: str = "i-0") -> None:
    """Two looks that both say gone."""
    (held,) = [o for o in store.open_obligations() if o.ref == instance_id]
    store.record_observation(held.obligation_id, gone=True)
    store.record_observation(held.obligation_id, gone=True)


ENDPOINT = SshEndpoint("127.0.0.1", 2222, "root", "ssh-ed25519 AAAA", "/work")
