"""What hand-overs come to: whose bytes reached each decode node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

OWN_ENOUGH = 0.999
LEAST_HANDOVERS = 200


@dataclass(frozen=True)
class Handover:
    """Shares of the bytes that arrived, 0 to 1."""

    own: float
    foreign: float
    """Of the other request that most of them equal."""

    @staticmethod
    def of(name: str, shares: dict[str, float]) -> Handover:
        """From the shares by name, as the request ``name`` sees them."""
        return Handover(shares[name], max(share for other, share in shares.items() if other != name))


@dataclass(frozen=True)
class Verdict:
    """One run."""

    handed_over: int
    own_min: float | None
    own_median: float | None
    not_own: int
    """With less than ``OWN_ENOUGH`` of their own bytes."""
    mostly_foreign: int
    failed: int
    """Visibly: the caller got an error."""

    @property
    def is_clean(self) -> bool:
        """Enough hand-overs, each with its own bytes; visible failures are no corruption."""
        return self.handed_over >= LEAST_HANDOVERS and self.not_own == 0

    @property
    def is_corrupt(self) -> bool:
        return self.mostly_foreign > 0

    def document(self) -> dict[str, Any]:
        return asdict(self)


def verdict(handovers: Sequence[Handover], failed: int) -> Verdict:
    """Count."""
    own = sorted(handover.own for handover in handovers)
    return Verdict(
        handed_over=len(own),
        own_min=own[0] if own else None,
        own_median=own[len(own) // 2] if own else None,
        not_own=sum(share < OWN_ENOUGH for share in own),
        mostly_foreign=sum(handover.foreign > handover.own for handover in handovers),
        failed=failed,
    )
