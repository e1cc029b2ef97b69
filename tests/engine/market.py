"""Sessions on a real mock market and a real ledger. Its nodes are plain sleeping processes: quick, and no SSH."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from gpufleet.domain.market import Instance, InstanceState, Inventory, OfferQuery
from gpufleet.domain.nodes import NodeName
from gpufleet.engine.listing import Listing
from gpufleet.engine.release import confirm_gone, decide_end
from gpufleet.engine.rent import Wanted, rent
from gpufleet.engine.session import Session, now, open_session
from gpufleet.ledger.costs import bill
from gpufleet.ledger.records import Rental
from gpufleet.providers.base import Capabilities, CreateRequest, Provider
from gpufleet.providers.errors import InstanceNotFound
from gpufleet.providers.mock import billing
from gpufleet.providers.mock.control import stop_all
from tests.providers.places import PUBLIC_KEY, SLEEPER

NODE = NodeName("prefill", 0)


@dataclass
class Place:
    """A folder with a fleet file, a state directory and a market."""

    root: Path
    options: dict[str, Any] = field(default_factory=dict)
    fleet: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fleet = self.fleet or {
            "name": "test",
            "provider": {"use": "mock", **self.options},
            "pools": {"prefill": {"gpu": "H200:8", "count": 1}, "native": {"gpu": "H200:8", "count": 1}},
            "router": {
                "listen": "127.0.0.1:18080",
                "channels": {"batch": {"class": "batch", "key": "env:GF_TEST_BATCH"}},
            },
        }
        self.write()

    @property
    def file(self) -> Path:
        return self.root / "fleet.yaml"

    def write(self, **changes: Any) -> None:
        self.fleet |= changes
        self.file.write_text(yaml.safe_dump(self.fleet, sort_keys=False))

    @contextmanager
    def session(self, *, recover: bool = False) -> Iterator[Session]:
        """What one command has; as `api` does, the fleet's text is remembered."""
        with open_session(self.file, state_dir=self.root / "s", recover=recover) as session:
            session.store.save_fleet(session.fleet.name, session.loaded.text, str(self.file.absolute()))
            yield session

    def charges(self, market: str = "market") -> list[billing.Charge]:
        return billing.read(self.root / market)

    def running(self, market: str = "market") -> list[billing.Charge]:
        return [charge for charge in self.charges(market) if charge.ended is None]


def market_options(root: Path, faults: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    number = zlib.crc32(str(root).encode()) % 65536
    return {
        "directory": "market",
        "time_scale": 3000,
        "network": f"127.{96 + number // 4096}.{number % 256}.0/24",
        "node_command": list(SLEEPER),
        "faults": faults,
        **more,
    }


@contextmanager
def place(root: Path, *faults: dict[str, Any], **more: Any) -> Iterator[Place]:
    made = Place(root, market_options(root, list(faults), **more))
    try:
        yield made
    finally:
        for market in ("market", "second"):
            stop_all(root / market)


def provider_of(session: Session) -> Provider:
    return session.provider(session.fleet.provider)


def rent_one(
    session: Session,
    provider: Provider | None = None,
    *,
    limit: Decimal | None = None,
    offer: str | None = None,
    node: NodeName = NODE,
) -> Rental:
    """Rent a node as `up` does: the cheapest offer first."""
    provider = provider or provider_of(session)
    session.account(provider)
    offers = provider.offers(OfferQuery(gpu=session.fleet.pools[node.pool].gpu))
    wanted = Wanted(
        node=node,
        offers=[o for o in offers if offer in {None, o.offer_id}],
        max_usd_per_hour=limit,
        disk_gb=100,
        deadline_at=None,
        ssh_public_key=PUBLIC_KEY,
    )
    return rent(session, provider, Listing(provider), wanted)


def end_all(session: Session) -> None:
    """End every rental of the fleet and wait for the evidence."""
    for rental in session.store.rentals(session.fleet.name):
        decide_end(session, rental, "test")
    confirm_gone(session, give_up=30.0)


def assert_even(session: Session, place: Place) -> None:
    """Nothing runs, and both bills say the same to the cent and below."""
    charges = place.charges()
    assert all(charge.ended is not None for charge in charges)
    ours = {line.instance_id: line.usd for line in bill(session.store, session.fleet.name, now()).lines}
    assert ours == {charge.instance_id: charge.usd for charge in charges}


@dataclass
class Odd:
    """A provider that is the market, but for what a test gives it."""

    real: Provider
    after_create: Callable[[Instance], Instance] = lambda instance: instance
    hidden: bool = False
    """Shows nothing, by listing or by id, as providers do for a while after a create."""
    settle_seconds: float | None = None

    @property
    def name(self) -> str:
        return self.real.name

    @property
    def caps(self) -> Capabilities:
        settle = self.real.caps.settle_seconds if self.settle_seconds is None else self.settle_seconds
        return replace(self.real.caps, settle_seconds=settle)

    def create(self, request: CreateRequest) -> Instance:
        return self.after_create(self.real.create(request))

    def get(self, instance_id: str) -> Instance:
        if self.hidden:
            raise InstanceNotFound(f"no instance {instance_id}")
        return self.real.get(instance_id)

    def inventory(self) -> Inventory:
        listed = self.real.inventory()
        return Inventory(listed.account) if self.hidden else listed

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def take_the_place_of(session: Session, odd: Odd) -> None:
    """From now on the session's provider of that name is the odd one."""
    session._providers[odd.name] = odd


def living(session: Session) -> list[Rental]:
    return [r for r in session.store.rentals(session.fleet.name) if r.state is not InstanceState.TERMINATED]
