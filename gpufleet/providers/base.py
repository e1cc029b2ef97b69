"""The interface every place to rent implements.

Adapters never retry a create, never loop asleep, never write the ledger and never log a secret: retrying, limits,
persistence and waiting live in the engine. Every call returns at once with what the provider knows now.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Protocol, runtime_checkable

from gpufleet.domain.market import Instance, Inventory, Offer, OfferQuery
from gpufleet.domain.nodes import NodeName


class Lifetime(StrEnum):
    """What the end of a rental means."""

    TERMINATE = "terminate"
    """The provider destroys the instance and stops the meter."""
    RELEASE = "release"
    """The host goes on; we only give up our lease and clean up our own processes. Never powered off."""


@dataclass(frozen=True)
class Capabilities:
    """What a provider can do; pessimistic by default."""

    lifetime: Lifetime = Lifetime.TERMINATE
    idempotent_create: bool = False
    """A create with the same key may be sent twice."""
    server_expiry: bool = False
    """The provider itself ends a rental at ``deadline_at`` (a dead-man switch)."""
    settle_seconds: float = 120.0
    """How long a fresh instance may be missing from listings; an unclear create is looked up for at least this long.

    Real seconds, as `poll_seconds`."""
    poll_seconds: float = 5.0
    """Least time between two reads."""
    time_scale: float = 1.0
    """Above 1 only on the mock: simulated seconds per real second."""


@dataclass(frozen=True)
class Account:
    """Whose money it is; compared with the account that the ledger's rentals were made with."""

    account_id: str
    balance_usd: Decimal | None = None


@dataclass(frozen=True)
class CreateRequest:
    """One node to rent."""

    key: str
    """Ownership key: name and tag of the instance; new for every attempt, at most 50 of ``[a-z0-9-]``."""
    fleet: str
    node: NodeName
    offer: Offer
    max_usd_per_hour: Decimal
    ssh_public_key: str
    disk_gb: int
    deadline_at: datetime | None = None


class TerminateAck(StrEnum):
    """What a terminate call achieved so far."""

    REQUESTED = "requested"
    GONE = "gone"
    NOT_YET = "not_yet"
    """Refused for now (for example while provisioning); ask again."""


class Provider(Protocol):
    """A place to rent nodes."""

    @property
    def name(self) -> str: ...

    @property
    def caps(self) -> Capabilities: ...

    def whoami(self) -> Account:
        """The account our credentials belong to."""
        ...

    def offers(self, query: OfferQuery) -> list[Offer]:
        """Live offers, cheapest first. Empty when there is none; raises when that is unknown."""
        ...

    def create(self, request: CreateRequest) -> Instance:
        """Rent. One attempt; returns as soon as the provider has given an id.

        Raises:
            CapacityError, QuotaError, PriceChanged, InvalidRequest, AuthError, PaymentError, RateLimited, NotSent:
                surely nothing was created.
            AmbiguousOutcome: anything else.
        """
        ...

    def get(self, instance_id: str) -> Instance:
        """One instance. Raises InstanceNotFound."""
        ...

    def inventory(self) -> Inventory:
        """Every instance of the account, complete, or an error."""
        ...

    def terminate(self, instance_id: str) -> TerminateAck:
        """Ask for the end of a rental; idempotent; a missing instance is GONE."""
        ...


@runtime_checkable
class LeasesHosts(Protocol):
    """A provider whose rentals are leases of hosts that others may use too; found by type.

    The lease is first taken here (`Provider.create`), then on the host itself with these scripts. They are whole POSIX
    shell scripts, to be run by ``sh`` over the engine's own connection; they hold no secret.
    """

    def lease_script(self, instance_id: str) -> str:
        """Take the host's lease file. Exits 0 when it is ours (again), 75 when another holds it (stderr says who)."""
        ...

    def release_script(self, instance_id: str) -> str:
        """Give the host's lease file back if it is ours. Always safe to run again."""
        ...
