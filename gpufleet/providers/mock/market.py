"""The mock market's memory: what is kept in ``market.json``."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from gpufleet.domain.market import GpuShape
from gpufleet.providers.document import Document


class Rental(BaseModel):
    """One instance. Its state is not stored: it follows from these times (`gpufleet.providers.mock.lifecycle`).

    ``*_seconds`` are simulated and count from ``created_at`` unless said otherwise; datetimes are real UTC.
    """

    instance_id: str
    key: str
    fleet: str
    node: str
    offer_id: str
    gpu: str
    region: str
    usd_per_hour: Decimal
    increment_s: int
    minimum_s: int
    created_at: datetime
    time_scale: float
    provision_seconds: float
    boot_seconds: float
    terminating_seconds: float
    """From ``terminate_at`` to the end of the meter."""
    address: str
    ssh_port: int
    host_id: str
    host_key: str
    """What the market tells about the node; the node itself shows the key in its root directory."""
    root: str
    listed_after_seconds: float = 0.0
    preempted_after_seconds: float | None = None
    rekeyed_after_seconds: float | None = None
    deadline_at: datetime | None = None
    terminate_at: datetime | None = None
    lagging_polls: int = 0
    """Reads that still show ``terminating`` after the end."""
    rekeyed: bool = False
    swept: bool = False
    """Every process of the ended node is gone."""
    account: str = ""
    known_after_seconds: float = 0.0
    """From when on a read by id finds it."""
    fails_after_seconds: float | None = None
    """When the market finds that it has no such machine after all."""
    stopped: bool = False
    """Made, and never started."""
    cluster_id: str | None = None
    rank: int | None = None
    billed: bool = False
    """Its line stands in the bill."""

    @property
    def shape(self) -> GpuShape:
        model, _, count = self.gpu.partition(":")
        return GpuShape(model, int(count))

    def after(self, simulated: float, start: datetime | None = None) -> datetime:
        """The real time ``simulated`` seconds after the creation (or after ``start``)."""
        return (start or self.created_at) + timedelta(seconds=simulated / self.time_scale)


class Volume(BaseModel):
    """A disk that outlives what it was made with."""

    volume_id: str
    account: str
    name: str
    """The key of the create call that made it."""
    used_by: str
    """An instance or a cluster; empty when that never came to be."""
    usd_per_hour: Decimal
    created_at: datetime
    deleted_at: datetime | None = None


class SshKey(BaseModel):
    """A public key that may be put on instances."""

    key_id: str
    account: str
    name: str
    public_key: str


class ClusterRecord(BaseModel):
    """Instances that were made together and end together."""

    cluster_id: str
    account: str
    key: str
    members: list[str]
    """Instances, by rank."""
    created_at: datetime
    listed_at: datetime


class Market(BaseModel):
    """Everything the market remembers."""

    salt: str = Field(default_factory=lambda: secrets.token_hex(8))
    rentals: dict[str, Rental] = Field(default_factory=dict)
    volumes: dict[str, Volume] = Field(default_factory=dict)
    clusters: dict[str, ClusterRecord] = Field(default_factory=dict)
    ssh_keys: dict[str, SshKey] = Field(default_factory=dict)
    calls: dict[str, int] = Field(default_factory=dict)
    """Calls so far by moment; faults count by them."""
    fired: dict[str, int] = Field(default_factory=dict)
    """How often each fault came."""
    prices: dict[str, Decimal] = Field(default_factory=dict)
    """Prices that a fault changed."""

    def next_id(self) -> str:
        """Unique over markets, and the same again when a killed create is followed by another one."""
        return self._id("i", len(self.rentals))

    def next_volume_id(self) -> str:
        """As `next_id`."""
        return self._id("vol", len(self.volumes))

    def next_cluster_id(self) -> str:
        """As `next_id`."""
        return self._id("c", len(self.clusters))

    def next_key_id(self) -> str:
        """Not of a number: keys are deleted for good."""
        return f"key-{secrets.token_hex(6)}"

    def volumes_of(self, owner_id: str) -> list[Volume]:
        """Volumes that are there, made with an instance or a cluster."""
        return [v for v in self.volumes.values() if v.used_by == owner_id and v.deleted_at is None]

    def _id(self, kind: str, number: int) -> str:
        text = f"{self.salt}:{number}" if kind == "i" else f"{self.salt}:{kind}:{number}"
        return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def document(directory: Path) -> Document[Market]:
    """The market that lives in a directory."""
    return Document(directory / "market.json", Market)


def account_id(directory: Path, account: str = "") -> str:
    """``mock-<hash of the directory>[-<account>]``: another directory is another account too."""
    place = f"mock-{hashlib.sha256(str(directory).encode()).hexdigest()[:12]}"
    return f"{place}-{account}" if account else place


def node_file(rental: Rental, machine: dict[str, Any], public_key: str) -> dict[str, Any]:
    """The content of ``node.json``, which `gpufleet.twin.node` starts from."""
    return {
        "name": rental.node,
        "address": rental.address,
        "ssh_port": rental.ssh_port,
        "host_key_file": str(Path(rental.root) / "host_key"),
        "authorized_keys": [public_key],
        "created": rental.created_at.timestamp(),
        "boot_seconds": rental.boot_seconds,
        "time_scale": rental.time_scale,
        **machine,
    }
