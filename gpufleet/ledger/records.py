"""What goes into the ledger and comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

from gpufleet.domain.market import GpuShape, InstanceState, Runtime, SshEndpoint
from gpufleet.domain.nodes import NodeName
from gpufleet.domain.status import Serving


@dataclass(frozen=True)
class FleetRecord:
    """The fleet file as it was when a run last began."""

    name: str
    spec_text: str
    """Holds references to secrets, never their values."""
    spec_path: str
    updated_at: datetime
    running: bool = False
    """Whether it is to run: `up` says yes, `down` no. `tick` brings up nothing that is not to run."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """What `scale` asked for last: ``counts`` per pool, and ``of_file``, what the file said of them then."""
    asked_at: datetime | None = None


class IntentKind(StrEnum):
    """What a create call makes."""

    INSTANCE = "instance"
    CLUSTER = "cluster"


@dataclass(frozen=True)
class Intent:
    """One create call that we are about to make."""

    key: str
    """Ownership key of the attempt; never used twice."""
    fleet: str
    node: NodeName
    provider: str
    account: str
    offer_id: str
    gpu: GpuShape
    usd_per_hour: Decimal
    max_usd_per_hour: Decimal
    region: str
    deadline_at: datetime | None = None
    billing_increment_s: int = 1
    """Terms of the offer, so that a rental that only a later run finds is billed by them too."""
    min_rental_s: int = 0
    digest: str = ""
    """sha256 of the request."""
    kind: IntentKind = IntentKind.INSTANCE
    members: tuple[NodeName, ...] = ()
    """A cluster's nodes by rank; ``node`` is then the first one."""
    runtime: Runtime = Runtime.DOCKER
    seen_before: tuple[str, ...] | None = None
    """The account's instance ids right before the call, where no name of ours would tell the new one."""

    @property
    def nodes(self) -> tuple[NodeName, ...]:
        """All that the call is to make."""
        return self.members or (self.node,)


class IntentState(StrEnum):
    """How far a create call got."""

    PREPARED = "prepared"
    """Written; the call has not left. After a crash: surely nothing was created."""
    SENT = "sent"
    """The call may have left; nothing is known of its answer."""
    CREATED = "created"
    REFUSED = "refused"
    """The provider said no; nothing was created."""
    NOT_SENT = "not_sent"
    """The call provably never left."""
    AMBIGUOUS = "ambiguous"
    """It may have been created: look it up by key, never send again."""
    PRESUMED_ABSENT = "presumed_absent"
    """Not found for the whole settle window; later sweeps look again."""
    FOUND = "found"
    """Ambiguous once, then found by its key."""


OPEN_INTENTS = (IntentState.PREPARED, IntentState.SENT, IntentState.AMBIGUOUS)
"""States that a run must clear up before it creates anything for the same node."""
HAS_RENTAL = (IntentState.CREATED, IntentState.FOUND)
LATE = timedelta(days=1)
"""How long after a create call more of what it made may show up, whatever was found of it so far."""


@dataclass(frozen=True)
class IntentRecord:
    """An intent and what became of it."""

    intent: Intent
    state: IntentState
    opened_at: datetime
    sent_at: datetime | None
    settled_at: datetime | None
    error: str | None


@dataclass(frozen=True)
class Rate:
    """From when a rental costs how much."""

    since: datetime
    usd_per_hour: Decimal


@dataclass(frozen=True)
class Rental:
    """One thing a provider created for us. Live until it is confirmed gone (`ended_at`)."""

    rental_id: int
    key: str
    fleet: str
    node: NodeName
    provider: str
    account: str
    instance_id: str
    offer_id: str
    state: InstanceState
    rates: tuple[Rate, ...]
    """At least one; the last one holds now."""
    gpu: GpuShape
    region: str
    ssh: SshEndpoint | None
    """``host_key`` is the pinned one."""
    private_ip: str | None
    host_id: str | None
    started_at: datetime
    """When the provider says that the meter started; before it has said so, when we sent the create call."""
    ended_at: datetime | None
    deadline_at: datetime | None
    billing_increment_s: int
    min_rental_s: int
    serving: Serving
    settings: Mapping[str, str]
    """What it was last brought up with."""
    fingerprint: Mapping[str, str]
    note: str
    duplicate: bool
    """A second instance for one create call: to be terminated, never used."""
    runtime: Runtime = Runtime.DOCKER
    cluster_id: str | None = None
    """The cluster that it ends with."""
    rank: int | None = None
    expires_at: datetime | None = None
    """When the provider itself ends it, as the provider says."""

    @property
    def usd_per_hour(self) -> Decimal:
        """The price now."""
        return self.rates[-1].usd_per_hour

    @property
    def live(self) -> bool:
        """Not yet confirmed gone."""
        return self.ended_at is None


class ObligationState(StrEnum):
    """How far the end of a paid thing is."""

    HELD = "held"
    """Rented and wanted."""
    ENDING = "ending"
    """To be ended: call terminate until it is gone."""
    GONE = "gone"
    """Seen gone twice in a row."""


GONE_OBSERVATIONS = 2
"""One complete observation may be a provider's hiccup; two in a row are evidence."""


@dataclass(frozen=True)
class Obligation:
    """Something that costs money until it is confirmed gone."""

    obligation_id: int
    provider: str
    kind: str
    """``instance``, or a word of `ExtraKind`."""
    ref: str
    """The provider's id for it."""
    fleet: str
    reason: str
    state: ObligationState
    opened_at: datetime
    ending_since: datetime | None = None
    gone_observations: int = 0
    first_gone_at: datetime | None = None
    closed_at: datetime | None = None
    last_error: str | None = None
    parent: str | None = None
    """The instance or cluster it was created with and ends after."""
    usd_per_hour: Decimal | None = None
    """Of an extra, where the provider says; an instance's price is its rental's."""


@dataclass(frozen=True)
class Event:
    """Something that happened; never changed, never deleted."""

    event_id: int
    at: datetime
    fleet: str
    node: NodeName | None
    kind: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """One command that changed, or tried to change, a fleet."""

    run_id: int
    fleet: str
    command: str
    started_at: datetime
    ended_at: datetime | None
    outcome: str | None
    """None while it runs, and for ever when it was killed."""
