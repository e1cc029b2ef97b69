"""The interface every place to rent implements.

Adapters never retry a create, never loop asleep, never write the ledger and never log a secret: retrying, limits,
persistence and waiting live in the engine. Every call returns at once with what the provider knows now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Protocol, runtime_checkable

from gpufleet.domain.market import Extra, ExtraKind, Instance, InstanceState, Inventory, Offer, OfferQuery, Runtime
from gpufleet.domain.nodes import NodeName


class Lifetime(StrEnum):
    """What the end of a rental means."""

    TERMINATE = "terminate"
    """The provider destroys the instance and stops the meter."""
    RELEASE = "release"
    """The host goes on; we only give up our lease and clean up our own processes. Never powered off."""


class Ownership(StrEnum):
    """What carries our key, so that a complete listing can tell what is ours."""

    NONE = "none"
    """Nothing does: creates need the user's consent, go one at a time, and an unclear one is never cleaned up alone."""
    NAME = "name"
    LABEL = "label"
    TAGS = "tags"


class Login(StrEnum):
    """How SSH reaches a rental."""

    DIRECT = "direct"
    PROXY = "proxy"
    """Through the provider's own relay; its host and port are reused by others."""
    JUMP = "jump"
    """Through another of our own instances (`SshEndpoint.jump`)."""


@dataclass(frozen=True)
class Capabilities:
    """What a provider can do; pessimistic by default."""

    lifetime: Lifetime = Lifetime.TERMINATE
    ownership: Ownership = Ownership.NONE
    name_max: int = 50
    """Longest name that it keeps whole."""
    idempotent_create: bool = False
    """A create with the same key may be sent twice."""
    server_expiry: bool = False
    """The provider itself ends a rental at ``deadline_at`` (a dead-man switch)."""
    poweroff_stops_billing: bool = False
    price_guard: bool = False
    """A create can carry the highest price, and is refused above it."""
    spot: bool = False
    runtime: Runtime = Runtime.DOCKER
    """Of its rentals, unless an offer says otherwise."""
    keeps_entrypoint: bool = False
    """A container's entrypoint stays the image's own; `RentRequest.start` becomes its arguments."""
    private_network: bool = True
    """Its nodes reach each other by private addresses."""
    clusters: bool = False
    """It is a `RentsClusters`."""
    login: Login = Login.DIRECT
    terminate_while_provisioning: bool = False
    """Else a terminate call may be answered NOT_YET until the instance runs."""
    creates_at_once: int = 16
    """Create calls in flight at the same time; 1 wherever ``ownership`` is NONE."""
    settle_seconds: float = 120.0
    """How long a fresh instance may be missing from listings; an unclear create is looked up for at least this long.

    Real seconds, as `poll_seconds`."""
    poll_seconds: float = 5.0
    """Least time between two reads."""
    time_scale: float = 1.0
    """Above 1 only on the mock: simulated seconds per real second."""
    verified: str = ""
    """How far its description was checked, and against what."""
    create_refused: str = ""
    """Why nothing may be rented there now, and what would change that; empty when it may."""


@dataclass(frozen=True)
class Account:
    """Whose money it is; compared with the account that the ledger's rentals were made with."""

    account_id: str
    balance_usd: Decimal | None = None
    spend_limit_usd_per_hour: Decimal | None = None


@dataclass(frozen=True, kw_only=True)
class RentRequest:
    """What every create says, of one node or of a cluster."""

    key: str
    """Ownership key: name and tag of what is made; new for every attempt, at most 50 of ``[a-z0-9-]``."""
    fleet: str
    offer: Offer
    max_usd_per_hour: Decimal
    """For one node."""
    ssh_public_key: str
    disk_gb: int
    deadline_at: datetime | None = None
    ssh_key_ref: str | None = None
    """What `InstallsKeys.ensure_ssh_key` gave."""
    image: str | None = None
    """Container image to start from, for a rental whose runtime is INSIDE."""
    start: str | None = None
    """Shell text to run as that container's command; it brings up sshd with ``ssh_public_key`` and stays."""


@dataclass(frozen=True, kw_only=True)
class CreateRequest(RentRequest):
    """One node to rent."""

    node: NodeName


@dataclass(frozen=True, kw_only=True)
class ClusterRequest(RentRequest):
    """Several equal nodes on one fabric, all or none."""

    nodes: tuple[NodeName, ...]
    """By rank."""


@dataclass(frozen=True)
class Cluster:
    """A cluster as the provider reports it now."""

    provider: str
    cluster_id: str
    name: str
    state: InstanceState
    raw_state: str
    members: tuple[Instance, ...] = ()
    """Those that it tells so far; they stand in the inventory too. Each carries `Instance.cluster_id` and a rank."""
    created_at: datetime | None = None
    extras: tuple[Extra, ...] = ()
    """What was created with it and does not end with it by itself."""


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
        """Every instance of the account, members of clusters and stopped ones too, complete, or an error."""
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


@runtime_checkable
class Paced(Protocol):
    """A provider that allows so many calls and no more; found by type."""

    def wait_before(self, operation: str) -> float:
        """Take the next free turn for ``create`` or ``create_cluster``; returns seconds until it comes.

        The engine waits, so that a user's Ctrl-C is heard. Reads and terminations wait for their turn by themselves.
        """
        ...


@runtime_checkable
class InstallsKeys(Protocol):
    """A provider that must know a public key before an instance can be made with it; found by type."""

    def ensure_ssh_key(self, name: str, public_key: str) -> str:
        """The provider's reference for this public key; uploads it under ``name`` when it is not there yet."""
        ...


@runtime_checkable
class HasExtras(Protocol):
    """A provider that keeps things beside instances; found by type."""

    def extras(self) -> list[Extra]:
        """All volumes, scripts and SSH keys of the account, complete, or an error. (Clusters: `RentsClusters`.)"""
        ...

    def delete_extra(self, kind: ExtraKind, ref: str) -> TerminateAck:
        """Ask for the end of one; idempotent; a missing one is GONE; NOT_YET while something still uses it."""
        ...


@runtime_checkable
class TellsCharges(Protocol):
    """A provider that tells what it charges; found by type."""

    def charges(self) -> Mapping[str, Decimal]:
        """What each instance of the account has cost so far by the provider's own meter: USD by instance id."""
        ...


@runtime_checkable
class RentsClusters(Protocol):
    """A provider that rents equal nodes on one fabric as a whole; found by type."""

    def create_cluster(self, request: ClusterRequest) -> Cluster:
        """Rent all or none. One attempt; raises as `Provider.create`."""
        ...

    def cluster(self, cluster_id: str) -> Cluster:
        """One cluster. Raises InstanceNotFound."""
        ...

    def clusters(self) -> list[Cluster]:
        """Every cluster of the account, complete, or an error."""
        ...

    def delete_cluster(self, cluster_id: str) -> TerminateAck:
        """Ask for the end of a cluster and all its members; idempotent; a missing one is GONE."""
        ...
