"""Sort what a provider has by how it stands to the ledger. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from gpufleet.domain.audit import Found, ProviderAudit, Standing
from gpufleet.domain.market import Instance, Inventory
from gpufleet.engine.keys import parse_key
from gpufleet.ledger.records import Rental


def sort_out(
    inventory: Inventory,
    provider: str,
    *,
    rentals: Sequence[Rental],
    ending: Collection[str],
    owner: str,
    now: datetime,
    settle_seconds: float,
) -> ProviderAudit:
    """One provider's listing against everything the ledger knows of it.

    Args:
        rentals: all of this ledger at this provider, ended ones too.
        ending: instance ids whose end is decided.
        owner: whose ledger this is.
        settle_seconds: younger things may be of a create call that is still in flight.
    """
    live = {r.instance_id: r for r in rentals if r.live}
    billing = [i for i in inventory.instances if i.state.may_bill]
    found = [
        _found(i, live.get(i.instance_id), ending=ending, owner=owner, now=now, settle_seconds=settle_seconds)
        for i in billing
    ]
    there = {i.instance_id for i in inventory.instances}
    lost = tuple(r.node for r in live.values() if r.instance_id not in there and r.instance_id not in ending)
    return ProviderAudit(provider, inventory.account, tuple(found), lost)


def _found(
    instance: Instance,
    held: Rental | None,
    *,
    ending: Collection[str],
    owner: str,
    now: datetime,
    settle_seconds: float,
) -> Found:
    key = parse_key(instance.name)
    if held is not None:
        standing = Standing.ENDING if instance.instance_id in ending else Standing.HELD
    elif key is None:
        standing = Standing.STRANGER
    else:
        standing = Standing.ORPHAN if key.owner == owner else Standing.FOREIGN
    age = (now - instance.created_at).total_seconds() if instance.created_at else None
    return Found(
        provider=instance.provider,
        instance_id=instance.instance_id,
        name=instance.name,
        standing=standing,
        fleet=held.fleet if held else key.fleet if key else None,
        owner=key.owner if key else None,
        usd_per_hour=held.usd_per_hour if held else instance.usd_per_hour,
        age_seconds=age,
        ripe=age is not None and age > settle_seconds,
    )
