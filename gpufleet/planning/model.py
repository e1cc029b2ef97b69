"""What planning takes and what it gives. Money is Decimal USD per node-hour; durations are seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from gpufleet.domain.market import GpuShape, InstanceState, Offer
from gpufleet.domain.nodes import NodeName, Role
from gpufleet.domain.status import Serving
from gpufleet.spec.model import Fleet


class ActionKind(StrEnum):
    """What happens to a node."""

    CREATE = "create"
    KEEP = "keep"
    UPDATE = "update"
    """Brought (again) to what the file asks for, on the same rental."""
    REPLACE = "replace"
    """Its rental ends and another begins."""
    DRAIN = "drain"
    """Takes no new requests; what runs on it ends."""
    TERMINATE = "terminate"
    """Its rental ends."""


WANTED_KINDS = (ActionKind.CREATE, ActionKind.KEEP, ActionKind.UPDATE, ActionKind.REPLACE)
"""Actions that leave a paid node behind."""


@dataclass(frozen=True)
class FieldChange:
    """One value that differs. None means that there is none on that side."""

    field: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Action:
    """One step of a plan."""

    kind: ActionKind
    node: NodeName
    role: Role | None
    """None for a node of a pool that the file no longer knows."""
    provider: str
    reason: str
    offer: Offer | None = None
    """What will be rented (create, replace)."""
    instance_id: str | None = None
    """What is rented now; for a replacement the rental that ends."""
    usd_per_hour: Decimal = Decimal(0)
    """Of the node after the action; for terminate and drain what it costs now."""
    changes: tuple[FieldChange, ...] = ()
    seconds_to_ready: float = 0.0
    """Real seconds from the start of the run."""


@dataclass(frozen=True)
class Plan:
    """The way from what is to what should be."""

    actions: tuple[Action, ...]
    usd_per_hour_now: Decimal
    """Everything that may bill, creates of unknown outcome included."""
    usd_per_hour_after: Decimal
    """The same once the plan is carried out."""
    seconds_to_ready: float
    problems: tuple[str, ...]
    """Why the plan must not be carried out; each says what would help."""
    made_at: datetime
    """When its prices and stock were true."""
    notes: tuple[str, ...] = ()
    """What the user should know before the money is spent; no reason to stop."""

    @property
    def changes(self) -> bool:
        """Whether there is anything to do."""
        return any(action.kind is not ActionKind.KEEP for action in self.actions)

    @property
    def changing(self) -> tuple[Action, ...]:
        """The actions that do something."""
        return tuple(action for action in self.actions if action.kind is not ActionKind.KEEP)

    @property
    def refusal(self) -> str | None:
        """All problems in one line, or None when the plan may be carried out."""
        return "; ".join(self.problems) or None

    def of(self, kind: ActionKind) -> tuple[Action, ...]:
        """The actions of one kind, in order."""
        return tuple(action for action in self.actions if action.kind is kind)


@dataclass(frozen=True)
class Desired:
    """What should be."""

    fleet: Fleet
    counts: Mapping[str, int]
    """Nodes per pool; a pool that is missing here has none."""
    settings: Mapping[NodeName, Mapping[str, str]] = field(default_factory=dict)
    """Everything that decides what runs on a node, flat."""
    durations: Mapping[NodeName, float] = field(default_factory=dict)
    """Expected seconds from the end of its boot until a node is ready."""
    time_scale: float = 1.0
    """Seconds of boot and of ``durations`` per real second (above 1 only on the mock)."""

    def wants(self, node: NodeName) -> bool:
        """Whether the node should exist."""
        return node.pool in self.fleet.pools and node.index < self.counts.get(node.pool, 0)

    def nodes(self) -> list[NodeName]:
        """Every node that should exist, in file order."""
        return [NodeName(pool, i) for pool in self.fleet.pools for i in range(self.counts.get(pool, 0))]


def desired_up(
    fleet: Fleet,
    *,
    settings: Mapping[NodeName, Mapping[str, str]] | None = None,
    durations: Mapping[NodeName, float] | None = None,
    time_scale: float = 1.0,
) -> Desired:
    """All that the file asks for."""
    counts = {name: pool.count for name, pool in fleet.pools.items()}
    return Desired(fleet, counts, settings or {}, durations or {}, time_scale)


def desired_down(fleet: Fleet) -> Desired:
    """Nothing at all."""
    return Desired(fleet, {})


@dataclass(frozen=True)
class ObservedNode:
    """One rental as it is."""

    node: NodeName
    provider: str
    instance_id: str
    usd_per_hour: Decimal
    gpu: GpuShape
    region: str
    state: InstanceState
    serving: Serving
    settings: Mapping[str, str]
    """What it was last brought up with; empty when it never was."""
    key: str
    duplicate: bool = False
    """A second instance of one create call: never used."""
    ending: bool = False
    """Its end was decided before."""
    cluster_id: str | None = None
    """The cluster that it ends with."""


@dataclass(frozen=True)
class Observed:
    """What is."""

    nodes: Sequence[ObservedNode] = ()
    """Every rental not yet confirmed gone."""
    offers: Mapping[str, Sequence[Offer]] = field(default_factory=dict)
    """Per pool what can be rented now; the same offer may stand in several pools and is counted once."""
    pending_usd_per_hour: Decimal = Decimal(0)
    """Creates in flight or of unknown outcome."""
    spent_usd: Decimal = Decimal(0)
    """The fleet's bill so far."""
    spent_today_usd: Decimal = Decimal(0)
    """Of it, since midnight of the schedule's zone, UTC without one."""
    drained: frozenset[NodeName] = frozenset()
    """Nodes that take no requests already."""
