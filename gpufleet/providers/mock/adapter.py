"""The mock market as a `Provider`: a marketplace in a directory; every call may come from another process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from gpufleet.domain.market import Instance, InstanceState, Inventory, Offer, OfferQuery
from gpufleet.providers.adapter import Adapter, Place
from gpufleet.providers.base import Account, Capabilities, CreateRequest, Ownership, TerminateAck
from gpufleet.providers.errors import AmbiguousOutcome, InstanceNotFound, ProtocolError
from gpufleet.providers.matching import fits
from gpufleet.providers.mock import billing, catalog, lifecycle, world
from gpufleet.providers.mock.faults import FaultBook, first, refuse
from gpufleet.providers.mock.market import Market, Rental, account_id, document
from gpufleet.providers.mock.options import Fault, MockOptions
from gpufleet.providers.mock.renting import Counter

_SETTLE_SECONDS = 60.0
_POLL_SECONDS = 5.0
_LEAST_POLL_S = 0.1
_HANG_SECONDS = 10.0
_LONGEST_HANG_S = 30.0
_STILL_RUNNING_SECONDS = 60.0
_LOST = {
    "lost-answer": "the connection broke before the answer",
    "error-500-after-create": "the market answered 500",
    "double": "the market answered 502",
}


class MockProvider:
    """See `gpufleet.providers.mock.options.KINDS` for the faults it plays."""

    def __init__(self, name: str, directory: Path, options: MockOptions, counter: Counter) -> None:
        self.name = name
        self.directory = directory
        self._options = options
        self._counter = counter
        self._document = document(directory)
        self._faults = FaultBook(options.faults, options.seed)

    @classmethod
    def open(cls, options: MockOptions, place: Place) -> MockProvider:
        """Open the market that the options name; it comes into being with the first call.

        Raises:
            InvalidFleet: the catalog is missing or wrong.
        """
        base = place.fleet_dir
        directory = (base / options.directory if options.directory else place.state_dir / "mock").resolve()
        listings = catalog.load(base / options.catalog if options.catalog else catalog.SHIPPED)
        return cls(place.name, directory, options, Counter(place.name, directory, options, listings))

    @property
    def caps(self) -> Capabilities:
        scale = self._options.time_scale
        return Capabilities(
            idempotent_create=self._options.idempotent_create,
            ownership=Ownership.NAME,
            server_expiry=True,
            price_guard=True,
            terminate_while_provisioning=not self._options.refuse_early_terminate,
            settle_seconds=_SETTLE_SECONDS / scale,
            poll_seconds=max(_POLL_SECONDS / scale, _LEAST_POLL_S),
            time_scale=scale,
        )

    def whoami(self) -> Account:
        return Account(account_id(self.directory))

    def offers(self, query: OfferQuery) -> list[Offer]:
        with self._market() as (market, now):
            self._refuse_read(market, "offers")
            offers = self._counter.offers(market, now)
        return sorted((o for o in offers if fits(o, query)), key=lambda o: (o.usd_per_hour, o.offer_id))

    def create(self, request: CreateRequest) -> Instance:
        try:
            return self._create(request)
        except ProtocolError as error:
            raise AmbiguousOutcome(error.message) from error

    def get(self, instance_id: str) -> Instance:
        with self._market() as (market, now):
            rental = self._find(market, instance_id, now)
            number = self._refuse_read(market, "get", node=rental.node if rental else None)
            if rental is None:
                raise InstanceNotFound(f"the market knows no instance {instance_id}")
            return self._look(market, rental, now, moment="get", number=number)

    def inventory(self) -> Inventory:
        with self._market() as (market, now):
            number = self._refuse_read(market, "inventory")
            empty = self._faults.hits(market, "inventory", number, kinds=["empty"])
            if empty:
                self._document.save(market)
            shown = [
                self._look(market, rental, now, moment="inventory", number=number)
                for rental in market.rentals.values()
                if not empty and lifecycle.is_listed(rental, now) and self._find(market, rental.instance_id, now)
            ]
        return Inventory(account_id(self.directory), tuple(shown))

    def terminate(self, instance_id: str) -> TerminateAck:
        with self._market() as (market, now):
            rental = self._find(market, instance_id, now)
            state = lifecycle.show(rental, now, provider=self.name).state if rental else None
            if rental is None or state is InstanceState.TERMINATED:
                return TerminateAck.GONE
            number = self._faults.count(market, "terminate")
            hits = self._faults.hits(market, "terminate", number, node=rental.node)
            self._document.save(market)
            refuse(hits)
            if first(hits, "terminate", "ignored") or rental.terminate_at or lifecycle.is_ending(rental, now):
                return TerminateAck.REQUESTED
            early = state is InstanceState.PROVISIONING and self._options.refuse_early_terminate
            if early or first(hits, "terminate", "not-yet"):
                return TerminateAck.NOT_YET
            self._begin_end(market, rental, now, first(hits, "terminate", "ok-but-running"))
            return TerminateAck.REQUESTED

    @contextmanager
    def _market(self) -> Iterator[tuple[Market, datetime]]:
        """The market, locked, after the world was made to agree with it."""
        with self._document.locked() as market:
            now = datetime.now(UTC)
            changed = world.reconcile(market, now, self._options.node_command)
            if billing.settle(self.directory, market, now) or changed:
                self._document.save(market)
            yield market, now

    def _create(self, request: CreateRequest) -> Instance:
        with self._market() as (market, now):
            known = [rental for rental in market.rentals.values() if rental.key == request.key]
            if known and self._options.idempotent_create:
                return lifecycle.show(known[0], now, provider=self.name)
            number = self._faults.count(market, "create")
            hits = self._faults.hits(market, "create", number, node=str(request.node))
            if first(hits, "create", "price-change"):
                self._counter.raise_price(market, request.offer.offer_id)
            self._document.save(market)
            refuse(hits)
            rentals = [self._rent(market, request, number, now) for _ in range(_copies(hits))]
        self._answer_badly(hits)
        return lifecycle.show(rentals[0], now, provider=self.name)

    def _rent(self, market: Market, request: CreateRequest, number: int, now: datetime) -> Rental:
        listing = self._counter.check(market, request, now)
        hits = [
            *self._faults.hits(market, "boot", number, node=str(request.node)),
            *self._faults.hits(market, "run", number, node=str(request.node)),
            *self._faults.hits(market, "machine", number, node=str(request.node)),
            *self._faults.hits(market, "inventory", number, node=str(request.node), kinds=["lag"]),
        ]
        rental = self._counter.new_rental(market, request, listing, hits, now)
        market.rentals[rental.instance_id] = rental
        self._document.save(market)
        # From here on the node is rented, whatever becomes of this process; the next call would start it.
        world.reconcile(market, now, self._options.node_command)
        return rental

    def _answer_badly(self, hits: Sequence[Fault]) -> None:
        if hang := first(hits, "create", "hang"):
            seconds = _HANG_SECONDS if hang.after is None else hang.after
            time.sleep(min(seconds / self._options.time_scale, _LONGEST_HANG_S))
        for hit in hits:
            if hit.kind in _LOST:
                raise AmbiguousOutcome(_LOST[hit.kind])

    def _find(self, market: Market, instance_id: str, now: datetime) -> Rental | None:
        rental = market.rentals.get(instance_id)
        if rental is None:
            return None
        forgotten = lifecycle.forgotten_at(rental, self._options.forget_seconds)
        return None if rental.swept and forgotten and now >= forgotten else rental

    def _look(self, market: Market, rental: Rental, now: datetime, *, moment: str, number: int) -> Instance:
        unknown = self._faults.hits(market, moment, number, node=rental.node, kinds=["unknown-state"])
        shown = lifecycle.show(rental, now, provider=self.name, unknown=bool(unknown))
        if unknown:
            self._document.save(market)
        if rental.lagging_polls and lifecycle.is_ending(rental, now):
            rental.lagging_polls -= 1
            self._document.save(market)
        return shown

    def _refuse_read(self, market: Market, moment: str, *, node: str | None = None) -> int:
        """Count a read and raise what its faults say; returns the call's number."""
        if not self._faults.concerns(moment):
            return 0
        number = self._faults.count(market, moment)
        hits = self._faults.refusals(market, moment, number, node=node)
        self._document.save(market)
        refuse(hits)
        return number

    def _begin_end(self, market: Market, rental: Rental, now: datetime, late: Fault | None) -> None:
        seconds = 0.0
        if late:
            seconds = _STILL_RUNNING_SECONDS if late.after is None else late.after
        # The node's processes go on until the meter stops; the first call after that ends them.
        rental.terminate_at = rental.after(seconds, now)
        rental.lagging_polls = 1
        self._document.save(market)


ADAPTER = Adapter(MockOptions, MockProvider.open)


def _copies(hits: Sequence[Fault]) -> int:
    return 2 if first(hits, "create", "double") else 1
