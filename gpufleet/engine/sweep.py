"""Bring the ledger up to date with what the providers say, before anything is decided."""

from __future__ import annotations

from gpufleet.domain.market import Instance, InstanceState
from gpufleet.engine.listing import Listing
from gpufleet.engine.rent import clear_up, record
from gpufleet.engine.session import Session
from gpufleet.ledger.records import IntentState, Rental
from gpufleet.providers.base import Provider


def refresh(session: Session) -> dict[str, Listing]:
    """Take in how every live rental is now; returns the listings read. Rents, ends and settles nothing.

    Raises:
        ProviderRefused: a provider could not be read.
        LedgerConflict: its account is not the one that the rentals were made with; everything would look gone.
    """
    listings = {}
    for provider in session.providers():
        listing = listings[provider.name] = Listing(provider)
        session.account(provider)
        for rental in session.store.rentals(session.fleet.name):
            if rental.provider == provider.name:
                session.store.update_rental(listing.instance(rental.instance_id) or _absent(rental))
    return listings


def sweep(session: Session) -> dict[str, Listing]:
    """`refresh`, and settle what earlier runs left unclear. The fleet's lock must be held.

    Raises:
        As `refresh`.
    """
    listings = refresh(session)
    for provider in session.providers():
        _settle(session, provider, listings[provider.name])
    return listings


def _settle(session: Session, provider: Provider, listing: Listing) -> None:
    for intent in session.store.open_intents(session.fleet.name):
        if intent.intent.provider == provider.name:
            clear_up(session, provider, listing, intent)
    for late in session.store.intents(session.fleet.name, [IntentState.PRESUMED_ABSENT]):
        if late.intent.provider == provider.name:
            for instance in listing.inventory().named(late.intent.key):
                record(session, late.intent.key, instance)


def _absent(rental: Rental) -> Instance:
    """A rental that neither a complete listing nor a read by id knows.

    It counts as terminated for planning; the meter is believed to have stopped only after two such observations.
    """
    return Instance(
        provider=rental.provider,
        instance_id=rental.instance_id,
        name=rental.key,
        state=InstanceState.TERMINATED,
        raw_state="absent",
        usd_per_hour=None,
        message="the provider no longer has it",
    )
