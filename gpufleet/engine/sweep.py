"""`refresh`, and settle what earlier runs left unclear, before anything is decided. Needs the fleet's lock."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from gpufleet.engine.clusters import go_on_with_clusters, take_in_clusters
from gpufleet.engine.extras import take_in_extras
from gpufleet.engine.listing import Listing
from gpufleet.engine.refresh import refresh, refresh_one
from gpufleet.engine.rent import clear_up
from gpufleet.engine.session import Session
from gpufleet.errors import GpufleetError, Interrupted, NodeFailed
from gpufleet.providers.base import Provider

_PARALLEL = 16


def sweep(session: Session) -> dict[str, Listing]:
    """`refresh`, and settle what earlier runs left unclear. The fleet's lock must be held.

    Raises:
        As `refresh`.
        Interrupted: the user asked to stop; what is unclear stays so.
    """
    listings = refresh(session)
    for name, listing in listings.items():
        _settle(session, session.provider_named(name), listing)
    return listings


def sweep_each(session: Session, names: Iterable[str]) -> tuple[dict[str, Listing], list[GpufleetError]]:
    """`sweep` for the end of a fleet: only these providers, and one that fails stops no other.

    Returns the listings that could be read, and why others could not.

    Raises:
        Interrupted: the user asked to stop.
    """
    listings, failures = {}, []
    for name in names:
        try:
            provider = session.provider_named(name)
            listing = refresh_one(session, provider)
            _settle(session, provider, listing)
            listings[name] = listing
        except Interrupted:
            raise
        except GpufleetError as failure:
            failures.append(failure)
    return listings, failures


def _settle(session: Session, provider: Provider, listing: Listing) -> None:
    mine = [i for i in session.store.open_intents(session.fleet.name) if i.intent.provider == provider.name]
    if mine:
        with ThreadPoolExecutor(max_workers=min(_PARALLEL, len(mine))) as pool:
            list(pool.map(lambda intent: clear_up(session, provider, listing, intent), mine))
    _take_in(session, provider, listing)
    take_in_clusters(session, provider)
    try:
        go_on_with_clusters(session, provider, listing)
    except NodeFailed as failure:
        # Its end is decided; what it was to be is planned anew.
        session.store.log_event(session.fleet.name, None, "bad-cluster", {"why": failure.message})
    take_in_extras(session, provider)


def _take_in(session: Session, provider: Provider, listing: Listing) -> None:
    """Record what carries a key of ours and is in no record: a late answer to a lost create, or a second one."""
    fleet = session.fleet.name
    keys = {i.intent.key for i in session.store.intents(fleet) if i.intent.provider == provider.name}
    held = {(r.instance_id, r.key) for r in session.store.rentals(fleet) if r.provider == provider.name}
    for instance in listing.inventory().instances:
        if instance.name in keys and instance.state.may_bill and (instance.instance_id, instance.name) not in held:
            known = session.store.rental(provider.name, instance.instance_id)
            if known is None or (known.key != instance.name and not known.live):
                session.store.record_rental(instance.name, instance)
