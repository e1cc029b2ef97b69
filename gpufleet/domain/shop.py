"""What can be rented where, as values that tables and JSON are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpufleet.domain.market import Offer


@dataclass(frozen=True)
class ProviderFacts:
    """One provider file, and what its provider can do."""

    name: str
    kind: str
    summary: str
    verified: str
    """How far the file was checked, in words."""
    docs: str
    abilities: Mapping[str, str] = field(default_factory=dict)
    """By name: ``ownership``, ``dead-man``, ``clusters`` and so on; empty when it cannot be opened."""
    missing: str | None = None
    """What stands between this machine and the provider: a key that is not set, an option that must be given."""
    refused: str | None = None
    """Why nothing may be rented there now."""


@dataclass(frozen=True)
class ProviderOffers:
    """What one provider answered."""

    provider: str
    offers: tuple[Offer, ...] = ()
    failure: str | None = None
    """Why it gave no answer, and what would help."""


@dataclass(frozen=True)
class Verified:
    """What a read-only trial of a provider showed."""

    provider: str
    account: str
    offers: int
    cheapest: Mapping[str, str]
    """By GPU shape: the least price, as text."""
    instances: int
    unknown_states: tuple[str, ...]
    record: str | None
    """File that remembers the trial, where the provider's description needs one."""
