"""``reconcile``: what the accounts have against the ledger; orphans of ours are shown, and ended on request."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from decimal import Decimal

from gpufleet.domain.audit import Audit, Found, ProviderAudit, Standing
from gpufleet.domain.market import GpuShape, Instance
from gpufleet.domain.nodes import NodeName
from gpufleet.engine.audit import sort_out
from gpufleet.engine.keys import parse_key
from gpufleet.engine.listing import read
from gpufleet.engine.release import confirm_gone
from gpufleet.engine.session import Session, now
from gpufleet.errors import GpufleetError, StillBilling
from gpufleet.ledger.obligations import INSTANCE
from gpufleet.ledger.records import Intent
from gpufleet.providers.base import Provider
from gpufleet.providers.errors import InstanceNotFound, ProtocolError

_READ_SECONDS = 30.0
_UNKNOWN = NodeName("unknown", 0)


def audit(session: Session, names: Sequence[str] = ()) -> Audit:
    """Look at these providers, or at all that the fleet uses or owes something to. Changes nothing."""
    wanted = list(names) or sorted({provider.name for provider in session.providers()})
    return Audit(session.store.owner_id(), tuple(_audit(session, name) for name in wanted))


def end_orphans(session: Session, found: Audit, *, owners: Collection[str] = ()) -> None:
    """Take the orphans that are old enough into the ledger, decide their end, and wait until they are gone.

    Args:
        owners: further owner ids whose instances count as ours.

    Raises:
        StillBilling: something could not be confirmed gone, or is too young to be touched.
    """
    mine = [f for f in _all(found) if _is_to_end(f, owners)]
    for orphan in mine:
        if orphan.ripe:
            _take_to_its_end(session, orphan)
    confirm_gone(session)
    if young := [f for f in mine if not f.ripe]:
        told = ", ".join(f"{f.provider} {f.instance_id}" for f in young)
        raise StillBilling(
            f"{told}: too young, a create call in flight may have made it", hint="run this again in some minutes"
        )


def _all(found: Audit) -> list[Found]:
    return [f for provider in found.providers for f in provider.found]


def _is_to_end(found: Found, owners: Collection[str]) -> bool:
    return found.standing is Standing.ORPHAN or (found.standing is Standing.FOREIGN and found.owner in owners)


def _audit(session: Session, name: str) -> ProviderAudit:
    try:
        provider = session.provider_named(name)
        account = session.account(provider)
        inventory = read(provider, provider.inventory, give_up=_READ_SECONDS)
        if inventory.account != account:
            raise ProtocolError(f"the listing is of account {inventory.account}, not of {account}")
        known = [r for r in session.store.rentals(live_only=False) if r.provider == name]
        ending = {o.ref for o in session.store.open_obligations() if o.kind == INSTANCE and o.ending_since}
        sorted_out = sort_out(
            inventory,
            name,
            rentals=known,
            ending=ending,
            owner=session.store.owner_id(),
            now=now(),
            settle_seconds=provider.caps.settle_seconds,
        )
        if sorted_out.lost and not inventory.instances:
            _check_empty(provider, [r.instance_id for r in known if r.live])
    except GpufleetError as failure:
        return ProviderAudit(name, failure=failure.message)
    return sorted_out


def _check_empty(provider: Provider, ids: Sequence[str]) -> None:
    """An empty listing beside live rentals is believed only when a read by id says the same.

    Raises:
        ProtocolError: the listing lies.
    """
    for instance_id in ids:
        try:
            alive = read(provider, lambda i=instance_id: provider.get(i)).state.may_bill  # type: ignore[misc]
        except InstanceNotFound:
            continue
        if alive:
            raise ProtocolError(f"{provider.name} lists nothing, and has {instance_id} all the same")


def _take_to_its_end(session: Session, orphan: Found) -> None:
    provider = session.provider_named(orphan.provider)
    try:
        instance = read(provider, lambda: provider.get(orphan.instance_id))
    except InstanceNotFound:
        return
    known = session.store.rental(orphan.provider, orphan.instance_id)
    if known is None:
        session.store.adopt(_intent(session, provider, instance), instance)
    else:
        session.store.update_rental(instance)
    session.store.oblige(orphan.provider, orphan.instance_id, fleet=session.fleet.name, reason="orphan")


def _intent(session: Session, provider: Provider, instance: Instance) -> Intent:
    """What the lost record may have said; its key is kept, its fleet is the one that ends it."""
    key = parse_key(instance.name)
    rate = instance.usd_per_hour if instance.usd_per_hour is not None else Decimal(0)
    return Intent(
        key=instance.name,
        fleet=session.fleet.name,
        node=_node(key.node) if key else _UNKNOWN,
        provider=provider.name,
        account=session.account(provider),
        offer_id="unknown",
        gpu=instance.gpu or GpuShape("unknown", 1),
        usd_per_hour=rate,
        max_usd_per_hour=rate,
        region=instance.region,
    )


def _node(text: str) -> NodeName:
    name = text.rstrip("0123456789")
    return NodeName(name or "unknown", int(text[len(name) :] or 0))
