"""Disks and other things beside instances that a create call made although no instance came of it."""

from __future__ import annotations

from gpufleet.engine.listing import read
from gpufleet.engine.session import Session
from gpufleet.providers.base import HasExtras, Provider


def take_in_extras(session: Session, provider: Provider) -> None:
    """Record what carries the key of a recent create call and is owed by no record.

    It is held with the call's instance where that lives, and else ends at once: some providers make the disk first and
    leave it when they then refuse the instance.
    """
    if not isinstance(provider, HasExtras):
        return
    store, fleet = session.store, session.fleet.name
    keys = {i.intent.key for i in store.recent_creates(fleet) if i.intent.provider == provider.name}
    if not keys:
        return
    owed = {(o.kind, o.ref) for o in store.open_obligations() if o.provider == provider.name}
    living = {r.key: r.instance_id for r in store.rentals(fleet) if r.provider == provider.name}
    for extra in read(provider, provider.extras):
        if extra.name not in keys or (extra.kind, extra.ref) in owed:
            continue
        if extra.name in living:
            store.hold_extras(provider.name, living[extra.name], [extra], fleet=fleet)
        else:
            why = "left behind by a create call"
            store.oblige(provider.name, extra.ref, fleet=fleet, reason=why, kind=extra.kind)
