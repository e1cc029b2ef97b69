"""The mock market as a `Provider`: a marketplace in a directory; every call may come from another process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from gpufleet.domain.market import Extra, ExtraKind, Instance, InstanceState, Inventory, Offer, OfferQuery, Runtime
from gpufleet.domain.nodes import NodeName
from gpufleet.providers.base import Account, Capabilities, ClusterRequest, CreateRequest, Ownership, TerminateAck
from gpufleet.providers.errors import (
    AmbiguousOutcome,
    ConflictError,
    InstanceNotFound,
    InvalidRequest,
    ProtocolError,
    QuotaError,
)
from gpufleet.providers.matching import fits
from gpufleet.providers.mock import billing, lifecycle, world
from gpufleet.providers.mock.faults import FaultBook, first, refuse
from gpufleet.providers.mock.market import Market, Rental, Volume, account_id, document
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
    "id-in-error": "the market answered 500, and named what it had made",
    "double": "the market answered 502",
}


class MockProvider:
    """See `gpufleet.providers.mock.options.KINDS` for the faults it plays, `abilities` for what an option may add."""

    def __init__(self, name: str, directory: Path, options: MockOptions, counter: Counter) -> None:
        self.name = name
        self.directory = directory
        self._options = options
        self._counter = counter
        self._document = document(directory)
        self._faults = FaultBook(options.faults, options.seed)

    @property
    def caps(self) -> Capabilities:
        scale = self._options.time_scale
        owned = self._options.ownership == "name"
        return Capabilities(
            idempotent_create=self._options.idempotent_create,
            ownership=Ownership.NAME if owned else Ownership.NONE,
            server_expiry=True,
            price_guard=True,
            spot=True,
            runtime=Runtime(self._options.runtime),
            clusters=self._options.clusters,
            terminate_while_provisioning=not self._options.refuse_early_terminate,
            creates_at_once=16 if owned else 1,
            settle_seconds=_SETTLE_SECONDS / scale,
            poll_seconds=max(_POLL_SECONDS / scale, _LEAST_POLL_S),
            time_scale=scale,
        )

    def charges(self) -> dict[str, Decimal]:
        """See `TellsCharges`."""
        return {line.instance_id: line.usd for line in billing.read(self.directory)}

    def whoami(self) -> Account:
        if not self._faults.concerns("whoami"):
            return Account(self._account_id)
        with self._market() as (market, _):
            number = self._refuse_read(market, "whoami")
            if self._faults.hits(market, "whoami", number, kinds=["other-account"]):
                self._document.save(market)
                return Account(account_id(self.directory, "somebody-else"))
        return Account(self._account_id)

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
            lies = {
                fault.kind for fault in self._faults.hits(market, "inventory", number, kinds=["empty", "duplicate"])
            }
            if lies:
                self._document.save(market)
            shown = [
                self._look(market, rental, now, moment="inventory", number=number)
                for rental in market.rentals.values()
                if "empty" not in lies and lifecycle.is_listed(rental, now) and self._is_there(rental, now)
            ]
        return Inventory(self._account_id, tuple(shown) * (2 if "duplicate" in lies else 1))

    def terminate(self, instance_id: str) -> TerminateAck:
        with self._market() as (market, now):
            rental = self._find(market, instance_id, now)
            if rental is None or lifecycle.shown_state(rental, now) is InstanceState.TERMINATED:
                return TerminateAck.GONE
            if rental.cluster_id is not None:
                raise ConflictError(f"{instance_id} is a member of cluster {rental.cluster_id} and ends with it")
            return self._end(market, [rental], now)

    @property
    def _account_id(self) -> str:
        return account_id(self.directory, self._options.account)

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
                return self._show(market, known[0], now)
            number, hits = self._order(market, request, request.node, now)
            rentals = [self._rent(market, request, number, hits, now) for _ in range(_copies(hits))]
            made = self._show(market, rentals[0], now)
        self._answer_badly(hits, made.instance_id)
        return made

    def _order(
        self, market: Market, request: CreateRequest | ClusterRequest, node: NodeName, now: datetime
    ) -> tuple[int, list[Fault]]:
        """Take a create call in: its number and its faults, unless one of them refuses it."""
        number = self._faults.count(market, "create")
        hits = self._faults.hits(market, "create", number, node=str(node))
        if first(hits, "create", "price-change"):
            self._counter.raise_price(market, request.offer.offer_id)
        if first(hits, "create", "volume-left") and self._options.volumes:
            self._add_volume(market, request.key, "", now)
        self._document.save(market)
        if self._options.ssh_keys and request.ssh_key_ref not in market.ssh_keys:
            raise InvalidRequest(f"the market has no SSH key {request.ssh_key_ref}")
        refuse(hits)
        if first(hits, "create", "volume-left"):
            raise QuotaError("the disk was made; the account's limit of nodes is reached")
        return number, hits

    def _rent(
        self, market: Market, request: CreateRequest, number: int, hits: Sequence[Fault], now: datetime
    ) -> Rental:
        listing = self._counter.check(market, request, now)
        fate = [*hits, *self._fate(market, number, request.node)]
        rental = self._counter.new_rental(market, request, request.node, listing, hits=fate, now=now)
        market.rentals[rental.instance_id] = rental
        if self._options.volumes:
            self._add_volume(market, request.key, rental.instance_id, now)
        self._document.save(market)
        # From here on the node is rented, whatever becomes of this process; the next call would start it.
        world.reconcile(market, now, self._options.node_command)
        return rental

    def _fate(self, market: Market, number: int, node: NodeName) -> list[Fault]:
        """What will go wrong with the node that a create call makes."""
        moments = {"boot": (), "run": (), "machine": (), "inventory": ("lag",), "get": ("lag",)}
        return [
            hit
            for moment, kinds in moments.items()
            for hit in self._faults.hits(market, moment, number, node=str(node), kinds=kinds)
        ]

    def _answer_badly(self, hits: Sequence[Fault], made: str) -> None:
        if hang := first(hits, "create", "hang"):
            seconds = _HANG_SECONDS if hang.after is None else hang.after
            time.sleep(min(seconds / self._options.time_scale, _LONGEST_HANG_S))
        for hit in hits:
            if hit.kind in _LOST:
                named = (made,) if hit.kind == "id-in-error" else ()
                raise AmbiguousOutcome(_LOST[hit.kind], instance_ids=named)

    def _add_volume(self, market: Market, name: str, used_by: str, now: datetime) -> None:
        volume = self._counter.new_volume(market, name, used_by, now)
        market.volumes[volume.volume_id] = volume

    def _find(self, market: Market, instance_id: str, now: datetime) -> Rental | None:
        rental = market.rentals.get(instance_id)
        known = rental is not None and lifecycle.is_known(rental, now) and self._is_there(rental, now)
        return rental if known else None

    def _is_there(self, rental: Rental, now: datetime) -> bool:
        forgotten = lifecycle.forgotten_at(rental, self._options.forget_seconds)
        over = rental.swept and forgotten is not None and now >= forgotten
        return rental.account == self._options.account and not over

    def _look(self, market: Market, rental: Rental, now: datetime, *, moment: str, number: int) -> Instance:
        unknown = self._faults.hits(market, moment, number, node=rental.node, kinds=["unknown-state"])
        shown = self._show(market, rental, now, unknown=bool(unknown))
        if unknown:
            self._document.save(market)
        if rental.lagging_polls and lifecycle.is_ending(rental, now):
            rental.lagging_polls -= 1
            self._document.save(market)
        return shown

    def _show(self, market: Market, rental: Rental, now: datetime, *, unknown: bool = False) -> Instance:
        shown = lifecycle.show(rental, now, provider=self.name, unknown=unknown)
        extras = tuple(self._volume(volume) for volume in market.volumes_of(rental.instance_id))
        return replace(shown, extras=extras, name=self._name(shown.name))

    def _volume(self, volume: Volume) -> Extra:
        return Extra(ExtraKind.VOLUME, volume.volume_id, self._name(volume.name), volume.usd_per_hour)

    def _name(self, name: str) -> str:
        return name if self._options.ownership == "name" else ""

    def _refuse_read(self, market: Market, moment: str, *, node: str | None = None) -> int:
        """Count a read and raise what its faults say; returns the call's number."""
        if not self._faults.concerns(moment):
            return 0
        number = self._faults.count(market, moment)
        hits = self._faults.refusals(market, moment, number, node=node)
        self._document.save(market)
        refuse(hits)
        return number

    def _end(self, market: Market, rentals: Sequence[Rental], now: datetime) -> TerminateAck:
        """Take a call in that asks for the end of these, together."""
        number = self._faults.count(market, "terminate")
        hits = self._faults.hits(market, "terminate", number, node=rentals[0].node)
        self._document.save(market)
        refuse(hits)
        going = all(rental.terminate_at or lifecycle.is_ending(rental, now) for rental in rentals)
        if first(hits, "terminate", "ignored") or going:
            return TerminateAck.REQUESTED
        provisioning = any(lifecycle.state_at(r, now) is InstanceState.PROVISIONING for r in rentals)
        if (provisioning and self._options.refuse_early_terminate) or first(hits, "terminate", "not-yet"):
            return TerminateAck.NOT_YET
        self._begin_end(market, rentals, now, first(hits, "terminate", "ok-but-running"))
        return TerminateAck.REQUESTED

    def _begin_end(self, market: Market, rentals: Sequence[Rental], now: datetime, late: Fault | None) -> None:
        seconds = 0.0
        if late:
            seconds = _STILL_RUNNING_SECONDS if late.after is None else late.after
        for rental in rentals:
            # The node's processes go on until the meter stops; the first call after that ends them.
            rental.terminate_at = rental.after(seconds, now)
            rental.lagging_polls = 1
        self._document.save(market)


def _copies(hits: Sequence[Fault]) -> int:
    return 2 if first(hits, "create", "double") else 1
