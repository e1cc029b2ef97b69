"""Bring the ledger's rentals up to date with what the providers say. Imports no SSH: `status` does this too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpufleet.domain.market import Instance, InstanceState
from gpufleet.engine.keys import is_ours
from gpufleet.engine.listing import Listing
from gpufleet.engine.session import Session
from gpufleet.engine.settling import settling
from gpufleet.ledger.records import Rental
from gpufleet.providers.base import Provider


def refresh(session: Session) -> dict[str, Listing]:
    """Take in how every live rental is now; returns the listings read. Rents, ends and settles nothing.

    Raises:
        ProviderRefused: a provider could not be read.
        LedgerConflict: its account is not the one that the rentals were made with; everything would look gone.
    """
    return {provider.name: refresh_one(session, provider) for provider in session.providers()}


def refresh_one(session: Session, provider: Provider) -> Listing:
    """The same for one provider."""
    listing = Listing(provider, give_up=session.read_seconds)
    session.account(provider)
    mine = [r for r in session.store.rentals(session.fleet.name) if r.provider == provider.name]
    session.store.update_rentals(_seen(session, provider, listing, mine), known=mine)
    return listing


def _seen(session: Session, provider: Provider, listing: Listing, rentals: Sequence[Rental]) -> Iterator[Instance]:
    """How each rental is now; one that is too fresh to be shown is left as it was."""
    for rental in rentals:
        instance = listing.instance(rental.instance_id)
        if instance is not None or not settling(session, provider, rental):
            yield instance or _absent(rental)


def strangers(session: Session, listings: Mapping[str, Listing]) -> list[Instance]:
    """Instances under this fleet's name that no record of ours knows: of a lost ledger, or of somebody else's."""
    known = {record.intent.key for record in session.store.intents(session.fleet.name)}
    listed = [i for listing in listings.values() for i in listing.inventory().instances if i.state.may_bill]
    return [i for i in listed if is_ours(i.name, session.fleet.name) and i.name not in known]


def told(instances: Iterable[Instance]) -> str:
    """What `strangers` found, for people."""
    names = ", ".join(f"{i.provider} {i.instance_id} ({i.name})" for i in instances)
    return f"in no record of this machine, but under this fleet's name: {names}; see: gpufleet reconcile"


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
