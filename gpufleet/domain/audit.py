"""What providers have against what the ledger knows, as values that tables and JSON are made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum

from gpufleet.domain.nodes import NodeName


class Standing(StrEnum):
    """How a thing at a provider stands to our ledger."""

    HELD = "held"
    ENDING = "ending"
    ORPHAN = "orphan"
    """Of our making, by its key, and in no record; or recorded as gone and alive all the same."""
    FOREIGN = "foreign"
    """Made by another ledger of gpufleet: a colleague's, or ours before its state was lost."""
    STRANGER = "stranger"
    """Not made by gpufleet."""


@dataclass(frozen=True)
class Found:
    """One instance at a provider."""

    provider: str
    instance_id: str
    name: str
    standing: Standing
    fleet: str | None
    owner: str | None
    usd_per_hour: Decimal | None
    age_seconds: float | None
    """Since the provider says it was created; None when it does not say."""
    ripe: bool
    """Old enough that no create call in flight can have made it."""


@dataclass(frozen=True)
class ProviderAudit:
    """One provider's complete listing, sorted; or why there is none."""

    provider: str
    account: str | None = None
    found: tuple[Found, ...] = ()
    lost: tuple[NodeName, ...] = ()
    """Held nodes that the provider does not have."""
    failure: str | None = None

    def of(self, standing: Standing) -> tuple[Found, ...]:
        """What stands so."""
        return tuple(f for f in self.found if f.standing is standing)


@dataclass(frozen=True)
class Audit:
    """The whole answer of ``gpufleet reconcile``."""

    owner: str
    providers: tuple[ProviderAudit, ...] = field(default=())

    @property
    def orphans(self) -> tuple[Found, ...]:
        return tuple(f for p in self.providers for f in p.of(Standing.ORPHAN))
