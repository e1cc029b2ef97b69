"""What providers offer and what they have created for us. Prices are Decimal USD per node-hour; times are aware UTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum


@dataclass(frozen=True, order=True)
class GpuShape:
    """A GPU model and how many of them one node has; written ``B200:8``."""

    model: str
    count: int

    def __str__(self) -> str:
        return f"{self.model}:{self.count}"


class Runtime(StrEnum):
    """How a role's programs run on a rental."""

    DOCKER = "docker"
    """The rental is a machine: each program runs in a container that we start."""
    INSIDE = "inside"
    """The rental is itself a container of the role's image: programs run in it directly, with no docker or systemd."""


@dataclass(frozen=True)
class ClusterTerms:
    """An offer that is rented as one cluster of equal nodes on one fabric, all of them or none."""

    min_nodes: int
    max_nodes: int


@dataclass(frozen=True)
class Offer:
    """Something that can be rented now, at a price."""

    provider: str
    offer_id: str
    gpu: GpuShape
    vram_gb_per_gpu: int
    usd_per_hour: Decimal
    """Whole node, per hour, GPUs and disk and address included."""
    region: str
    interconnect: str = "unknown"
    """``none``, ``eth``, ``roce``, ``ib`` or ``unknown``."""
    interconnect_gbps: int | None = None
    ram_gb: int | None = None
    disk_gb: int | None = None
    vcpus: int | None = None
    spot: bool = False
    stock: int | None = None
    """How many more can be rented; None when the provider does not say."""
    boot_seconds: float = 300.0
    """Expected time from create to a reachable SSH port."""
    min_rental_seconds: int = 0
    billing_increment_seconds: int = 1
    price_told: str = ""
    """The provider's own price and unit, where it is not dollars per node-hour: ``679 cents per GPU-hour``."""
    runtime: Runtime = Runtime.DOCKER
    cluster: ClusterTerms | None = None
    """Rented only as a cluster; the price is that of one of its nodes."""
    contract_end: datetime | None = None
    """When the provider takes it back whatever we do."""
    security: str = ""
    """The provider's word for whose machine it is: ``secure``, ``community``, ``datacenter``."""
    launch: Mapping[str, str] = field(default_factory=dict, compare=False)
    """What only this provider's adapter needs to rent it."""


@dataclass(frozen=True)
class OfferQuery:
    """Which offers are wanted. None means any."""

    gpu: GpuShape | None = None
    region: str | None = None
    spot: bool = False
    min_disk_gb: int = 0
    min_ram_gb: int = 0
    max_usd_per_hour: Decimal | None = None


class InstanceState(StrEnum):
    """A provider's word for an instance, normalised. Anything not in the provider's state map is UNKNOWN."""

    PROVISIONING = "provisioning"
    BOOTING = "booting"
    RUNNING = "running"
    STOPPED = "stopped"
    TERMINATING = "terminating"
    TERMINATED = "terminated"
    ERROR = "error"
    PREEMPTED = "preempted"
    UNKNOWN = "unknown"

    @property
    def may_bill(self) -> bool:
        """True unless there is positive evidence that the meter has stopped."""
        return self is not InstanceState.TERMINATED


WORKDIR = "/var/lib/gpufleet"
"""Where gpufleet keeps its files on a node, unless the provider or the inventory says otherwise."""


@dataclass(frozen=True)
class SshEndpoint:
    """How to reach a node."""

    host: str
    port: int = 22
    user: str = "root"
    host_key: str | None = None
    """``ssh-ed25519 AAAA...`` when the provider tells it; None means trust on first use, pinned per rental."""
    workdir: str = WORKDIR
    """Where gpufleet keeps its files on that node."""
    key_file: str | None = None
    """Private key on this machine that logs in there; None means the fleet's own, which the provider installed."""
    jump: SshEndpoint | None = None
    """The host through which alone it can be reached (a cluster's head)."""


class ExtraKind(StrEnum):
    """What a provider keeps for us beside instances. The order is that in which they are ended."""

    VOLUME = "volume"
    CLUSTER = "cluster"
    SCRIPT = "script"
    SSH_KEY = "ssh-key"


@dataclass(frozen=True)
class Extra:
    """Something beside an instance that may cost money, or lie about, until it is deleted."""

    kind: ExtraKind
    ref: str
    """The provider's id for it."""
    name: str = ""
    """As the provider shows it; ours carry an ownership key, or the fleet's prefix."""
    usd_per_hour: Decimal | None = None


@dataclass(frozen=True)
class Instance:
    """One thing a provider created, as it reports it now."""

    provider: str
    instance_id: str
    name: str
    """The ownership key we gave it (`CreateRequest.key`), as the provider shows it."""
    state: InstanceState
    raw_state: str
    usd_per_hour: Decimal | None
    gpu: GpuShape | None = None
    region: str = ""
    ssh: SshEndpoint | None = None
    private_ip: str | None = None
    host_id: str | None = None
    """The physical host, where the provider tells it, so that a bad one is not rented twice."""
    created_at: datetime | None = None
    ended_at: datetime | None = None
    """When the provider stopped the meter."""
    message: str = ""
    expires_at: datetime | None = None
    """When the provider itself ends it."""
    cluster_id: str | None = None
    """The cluster that it belongs to: it ends only with that."""
    rank: int | None = None
    """Its place in the cluster, from 0."""
    extras: tuple[Extra, ...] = ()
    """What was created with it and does not end with it by itself."""


@dataclass(frozen=True)
class Inventory:
    """A *complete* listing of an account; a listing that may be partial must be raised as an error instead."""

    account: str
    instances: tuple[Instance, ...] = field(default=())

    def named(self, key: str) -> tuple[Instance, ...]:
        """All instances that carry this ownership key."""
        return tuple(i for i in self.instances if i.name == key)
