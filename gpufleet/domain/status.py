"""What is, as values that tables and JSON are made from. None means unknown, and is shown as unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from gpufleet.domain.market import GpuShape, InstanceState
from gpufleet.domain.nodes import NodeName, Role


class Serving(StrEnum):
    """What a node does for callers."""

    READY = "ready"
    STARTING = "starting"
    """Rented, not (yet) brought up."""
    SICK = "sick"
    """Was ready; its health check fails now."""
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class NodeStatus:
    """One node of the fleet."""

    node: NodeName
    role: Role
    gpu: GpuShape | None
    provider: str
    instance_id: str | None
    state: InstanceState
    serving: Serving
    usd_per_hour: Decimal | None
    address: str | None
    since: datetime | None
    note: str = ""


@dataclass(frozen=True)
class CellStatus:
    """One backend of the router as HAProxy sees it."""

    name: str
    nodes: tuple[NodeName, ...]
    up: bool | None
    active: int | None
    queued: int | None
    served: int | None


@dataclass(frozen=True)
class FedStatus:
    """What a KV gate handed over to one decode node since it started."""

    node: NodeName
    landed: int
    failed: int
    handover_p50_s: float | None
    """From the request's turn until its KV cache has landed, as the upper bound of a bucket; 300 may be more."""
    handover_p95_s: float | None
    bytes: int


@dataclass(frozen=True)
class GateStatus:
    """The KV gate of one prefill node."""

    node: NodeName
    up: bool | None
    """Whether it accepts hand-overs; None when nobody could ask."""
    waiting: int = 0
    """Requests that wait for their turn now."""
    busy_seconds: float = 0.0
    """How long the hand-over at work has been going on; 0 when there is none."""
    queue_p50_s: float | None = None
    """How long requests waited for their turn, as for hand-overs; None before the first."""
    queue_p95_s: float | None = None
    refusals: Mapping[str, int] = field(default_factory=dict)
    """By reason (docs/gate.md)."""
    feeds: tuple[FedStatus, ...] = ()
    note: str = ""
    """Why nothing is known."""


@dataclass(frozen=True)
class EndpointStatus:
    """The front door."""

    url: str
    up: bool
    tls_fingerprint: str | None
    """SHA-256 of the certificate, ``AA:BB:...``."""
    channels: tuple[str, ...]
    waiting: int | None = None
    """Requests that wait for any cell."""


@dataclass(frozen=True)
class BillLine:
    """One rental, from its start to its end or to now."""

    node: NodeName
    provider: str
    instance_id: str
    usd_per_hour: Decimal
    started: datetime
    ended: datetime | None
    usd: Decimal


@dataclass(frozen=True)
class Bill:
    """Everything the fleet has cost so far."""

    lines: tuple[BillLine, ...]

    @property
    def total(self) -> Decimal:
        return sum((line.usd for line in self.lines), Decimal(0))

    @property
    def usd_per_hour(self) -> Decimal:
        """What still runs, per hour."""
        return sum((line.usd_per_hour for line in self.lines if line.ended is None), Decimal(0))


@dataclass(frozen=True)
class FleetStatus:
    """The whole answer of ``gpufleet status``."""

    fleet: str
    nodes: tuple[NodeStatus, ...]
    cells: tuple[CellStatus, ...]
    endpoint: EndpointStatus | None
    bill: Bill
    problems: tuple[str, ...] = field(default=())
    """Each says what is wrong and which command comes next."""
    gates: tuple[GateStatus, ...] = ()
    """Of the prefill nodes that have one."""
