"""What the market sells, at which price, and what happens when it sells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path

from gpufleet.domain.market import InstanceState, Offer, Runtime
from gpufleet.domain.nodes import NodeName
from gpufleet.providers.base import ClusterRequest, CreateRequest
from gpufleet.providers.errors import CapacityError, InvalidRequest, PriceChanged
from gpufleet.providers.mock import addresses, hostkey, lifecycle, machine, world
from gpufleet.providers.mock.catalog import Listing
from gpufleet.providers.mock.faults import first
from gpufleet.providers.mock.market import Market, Rental, Volume, node_file
from gpufleet.providers.mock.options import Fault, MockOptions

_KEY = re.compile(r"[a-z0-9][a-z0-9-]{0,49}")
_PROVISION_SHARE = 0.1
_PRICE_RISE = Decimal("1.5")
LAG_SECONDS = 30.0
LONGEST_START = 4096
"""Characters, as at Vast."""
VOLUME_USD_PER_HOUR = Decimal("0.11")
_MEMBER_SECONDS = 10.0
"""Simulated: members of a cluster appear one after the other, so far apart."""


class Counter:
    """The selling side of one market."""

    def __init__(self, name: str, directory: Path, options: MockOptions, listings: dict[str, Listing]) -> None:
        self._name = name
        self._directory = directory
        self._options = options
        self._listings = listings

    def offers(self, market: Market, now: datetime) -> list[Offer]:
        """The whole price list as of now, sold-out lines included."""
        return [self._offer(listing, market, now) for listing in self._listings.values()]

    def raise_price(self, market: Market, offer_id: str) -> None:
        """Half as much again, for good."""
        if listing := self._listings.get(offer_id):
            market.prices[offer_id] = self._price(listing, market) * _PRICE_RISE

    def check(self, market: Market, request: CreateRequest | ClusterRequest, now: datetime) -> Listing:
        """The line of the price list that the request may have, in full.

        Raises:
            InvalidRequest, CapacityError, PriceChanged: it may not.
        """
        _check_form(request, now)
        if self._options.runtime == "inside":
            _check_container(request)
        listing = self._listings.get(request.offer.offer_id)
        if listing is None:
            raise CapacityError(f"there is no offer {request.offer.offer_id}")
        if request.disk_gb > listing.disk_gb:
            raise InvalidRequest(f"{listing.offer_id} has {listing.disk_gb} GB of disk, not {request.disk_gb}")
        nodes = len(request.nodes) if isinstance(request, ClusterRequest) else None
        _check_size(listing, nodes)
        offer = self._offer(listing, market, now)
        if offer.usd_per_hour > request.max_usd_per_hour:
            raise PriceChanged(f"{listing.offer_id} costs ${offer.usd_per_hour}/h, above ${request.max_usd_per_hour}")
        if (offer.stock or 0) < (nodes or 1):
            raise CapacityError(f"{listing.offer_id} is sold out")
        return listing

    def new_rental(
        self,
        market: Market,
        request: CreateRequest | ClusterRequest,
        node: NodeName,
        listing: Listing,
        *,
        hits: Sequence[Fault],
        now: datetime,
        rank: int | None = None,
    ) -> Rental:
        """A rental and its root directory on disk; nothing counts before the market remembers it."""
        living = _living(market, now)
        instance_id = market.next_id()
        root = self._directory / "nodes" / instance_id
        root.mkdir(parents=True, exist_ok=True)
        boot = machine.boot_seconds(listing, hits)
        rental = Rental(
            instance_id=instance_id,
            key=request.key,
            fleet=request.fleet,
            node=str(node),
            offer_id=listing.offer_id,
            gpu=str(listing.gpu),
            region=listing.region,
            usd_per_hour=self._price(listing, market) * (_PRICE_RISE if first(hits, "create", "dearer") else 1),
            increment_s=listing.billing_increment_seconds,
            minimum_s=listing.min_rental_seconds,
            created_at=now,
            time_scale=self._options.time_scale,
            provision_seconds=listing.boot_seconds * _PROVISION_SHARE,
            boot_seconds=boot,
            terminating_seconds=self._options.terminating_seconds,
            address=self._address(market, living),
            ssh_port=self._options.ssh_port,
            host_id=_free_host(listing.offer_id, living),
            host_key=_host_key(root / "host_key", hits),
            root=str(root),
            listed_after_seconds=listed_after(hits) + (0.0 if rank is None else (rank + 1) * _MEMBER_SECONDS),
            known_after_seconds=_after(first(hits, "get", "lag"), LAG_SECONDS) or 0.0,
            fails_after_seconds=_after(first(hits, "boot", "no-capacity"), listing.boot_seconds * _PROVISION_SHARE),
            stopped=first(hits, "boot", "stopped") is not None,
            preempted_after_seconds=_after(
                first(hits, "run", "preemption"), machine.PREEMPTED_AFTER_SECONDS, start=boot
            ),
            rekeyed_after_seconds=_after(
                first(hits, "run", "host-key-change"), machine.REBOOT_AFTER_SECONDS, start=boot
            ),
            deadline_at=request.deadline_at,
            account=self._options.account,
            rank=rank,
        )
        facts = machine.describe(listing, hits, pace=self._options.pace, seed=self._options.seed)
        if self._options.runtime == "inside":
            facts |= {"image": request.image, "start": request.start}
        world.prepare(root, node_file(rental, facts, request.ssh_public_key))
        return rental

    def new_volume(self, market: Market, name: str, used_by: str, now: datetime) -> Volume:
        """The disk of an instance or a cluster."""
        return Volume(
            volume_id=market.next_volume_id(),
            account=self._options.account,
            name=name,
            used_by=used_by,
            usd_per_hour=VOLUME_USD_PER_HOUR,
            created_at=now,
        )

    def _offer(self, listing: Listing, market: Market, now: datetime) -> Offer:
        living = sum(rental.offer_id == listing.offer_id for rental in _living(market, now))
        stock = self._options.stock.get(listing.offer_id, listing.stock)
        offer = listing.offer(self._name, usd_per_hour=self._price(listing, market), stock=max(0, stock - living))
        return replace(offer, runtime=Runtime(self._options.runtime))

    def _price(self, listing: Listing, market: Market) -> Decimal:
        changed = market.prices.get(listing.offer_id)
        return changed or self._options.prices.get(listing.offer_id, listing.usd_per_hour)

    def _address(self, market: Market, living: Iterable[Rental]) -> str:
        taken = {rental.address for rental in living}
        return addresses.pick(self._options.network, self._options.ssh_port, taken=taken, salt=market.salt)


def listed_after(hits: Iterable[Fault]) -> float:
    """How many simulated seconds what is made now is missing from listings."""
    return _after(first(hits, "inventory", "lag"), LAG_SECONDS) or 0.0


def _check_size(listing: Listing, nodes: int | None) -> None:
    terms = listing.cluster
    if (terms is None) is not (nodes is None):
        how = "as a cluster" if terms else "one by one"
        raise InvalidRequest(f"{listing.offer_id} is rented only {how}")
    if terms is not None and nodes is not None and not terms.min_nodes <= nodes <= terms.max_nodes:
        raise InvalidRequest(f"{listing.offer_id} has {terms.min_nodes} to {terms.max_nodes} nodes, not {nodes}")


def _check_form(request: CreateRequest | ClusterRequest, now: datetime) -> None:
    if not _KEY.fullmatch(request.key):
        raise InvalidRequest(f"'{request.key[:60]}' is not a name: 1 to 50 of a-z, 0-9 and -")
    if not request.ssh_public_key.startswith("ssh-"):
        raise InvalidRequest("the SSH public key is not one")
    if request.deadline_at is not None and request.deadline_at <= now:
        raise InvalidRequest("the deadline has passed")


def _check_container(request: CreateRequest | ClusterRequest) -> None:
    if not request.image:
        raise InvalidRequest("a container is started from an image, and the request names none")
    if len(request.start or "") > LONGEST_START:
        raise InvalidRequest(f"the start command has more than {LONGEST_START} characters")


def _living(market: Market, now: datetime) -> list[Rental]:
    over = InstanceState.TERMINATED
    return [rental for rental in market.rentals.values() if lifecycle.state_at(rental, now) is not over]


def _free_host(offer_id: str, living: Sequence[Rental]) -> str:
    used = {rental.host_id for rental in living}
    return next(host for n in range(len(living) + 1) if (host := f"{offer_id}-host-{n}") not in used)


def _host_key(path: Path, hits: Sequence[Fault]) -> str:
    announced = hostkey.write_new(path)
    if first(hits, "boot", "host-key-change"):
        hostkey.write_new(path)
    return announced


def _after(fault: Fault | None, default: float, *, start: float = 0.0) -> float | None:
    if fault is None:
        return None
    return start + (default if fault.after is None else fault.after)
