"""Fleets, plans and bills to show: ordinary ones, and ones with names as long as they get."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from gpufleet.domain.market import GpuShape, InstanceState, Offer
from gpufleet.domain.nodes import NodeName, Role
from gpufleet.domain.status import (
    Bill,
    BillLine,
    CellStatus,
    EndpointStatus,
    FleetStatus,
    NodeStatus,
    Serving,
)

NOW = datetime(2026, 5, 4, 12, 30, tzinfo=UTC)
LONG_POOL = "a-pool-with-a-rather-long-name-for-interactive-traffic"
LONG_ID = "projects/some-team/zones/eu-north-1-a/instances/gf-0123456789abcdef"


@dataclass(frozen=True)
class Change:
    field: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Action:
    kind: str
    node: NodeName
    role: Role | None = Role.DECODE
    provider: str = "mock"
    reason: str = ""
    offer: Offer | None = None
    instance_id: str | None = None
    usd_per_hour: Decimal | None = Decimal("41.50")
    changes: tuple[Change, ...] = ()
    seconds_to_ready: float | None = 9_600.0


@dataclass(frozen=True)
class Plan:
    actions: tuple[Action, ...]
    usd_per_hour_now: Decimal = Decimal(0)
    usd_per_hour_after: Decimal = Decimal("83.00")
    seconds_to_ready: float = 9_600.0
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def offer(provider: str = "mock", region: str = "eu-north-1") -> Offer:
    return Offer(provider, "o-1", GpuShape("B200", 8), 180, Decimal("41.50"), region)


def bill(*, running: bool = False, pool: str = "decode", instance_id: str = "i-1") -> Bill:
    start = NOW - timedelta(hours=2)
    ended = None if running else NOW
    return Bill((BillLine(NodeName(pool, 0), "mock", instance_id, Decimal("41.50"), start, ended, Decimal("83.00")),))


def status(pool: str = "decode", instance_id: str = "i-1") -> FleetStatus:
    node = NodeStatus(
        NodeName(pool, 0),
        Role.DECODE,
        GpuShape("B200", 8),
        "mock",
        instance_id,
        InstanceState.RUNNING,
        Serving.READY,
        Decimal("41.50"),
        "127.64.0.2",
        NOW - timedelta(minutes=80),
    )
    cell = CellStatus(f"cell-{pool}-0", (NodeName(pool, 0), NodeName("prefill", 0)), True, 1, 0, 12)
    endpoint = EndpointStatus("https://10.0.0.5:8443/v1", True, ":".join(["AB"] * 32), ("chat", "batch"))
    return FleetStatus("quickstart", (node,), (cell,), endpoint, bill(running=True, pool=pool))
