"""Which fault hits a call. Counted in the market's memory, so that it is the same in one process or in many."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from gpufleet.errors import ProviderRefused
from gpufleet.providers import errors
from gpufleet.providers.mock.market import Market
from gpufleet.providers.mock.options import Fault

_REFUSALS: dict[str, Callable[[], ProviderRefused]] = {
    "capacity": lambda: errors.CapacityError("no capacity left for this offer"),
    "quota": lambda: errors.QuotaError("the account's limit of nodes is reached"),
    "payment": lambda: errors.PaymentError("the balance does not cover an hour of this node"),
    "auth": lambda: errors.AuthError("the market does not know this account"),
    "not-sent": lambda: errors.NotSent("the market could not be reached: connection refused"),
    "transient": lambda: errors.Transient("the market answered 503"),
    "partial": lambda: errors.ProtocolError("the listing ends before its announced count"),
}


class FaultBook:
    """The faults of one market."""

    def __init__(self, faults: Sequence[Fault], seed: int) -> None:
        self._faults = tuple(faults)
        self._seed = seed

    def count(self, market: Market, moment: str) -> int:
        """Count a call; returns its number, from 1."""
        market.calls[moment] = market.calls.get(moment, 0) + 1
        return market.calls[moment]

    def concerns(self, moment: str) -> bool:
        """Is there any fault at this moment? (If not, its calls need no counting.)"""
        return any(fault.at == moment for fault in self._faults)

    def refusals(self, market: Market, moment: str, number: int, *, node: str | None) -> list[Fault]:
        """Faults by which this call is refused."""
        return self.hits(market, moment, number, node=node, kinds=["429", "error-500", *_REFUSALS])

    def hits(
        self, market: Market, moment: str, number: int, *, node: str | None = None, kinds: Iterable[str] = ()
    ) -> list[Fault]:
        """Faults that hit call ``number`` of this moment; each is used up by that. ``kinds`` narrows the choice."""
        wanted = set(kinds)
        found = []
        for index, fault in enumerate(self._faults):
            right = fault.at == moment and (not wanted or fault.kind in wanted)
            if right and self._matches(market, index, number, node):
                market.fired[self._name(index)] = market.fired.get(self._name(index), 0) + 1
                found.append(fault)
        return found

    def _matches(self, market: Market, index: int, number: int, node: str | None) -> bool:
        fault = self._faults[index]
        if market.fired.get(self._name(index), 0) >= fault.times:
            return False
        if fault.node is not None and fault.node != node:
            return False
        if fault.nth is not None and fault.nth != number:
            return False
        return fault.chance >= 1 or self._draw(index, number) < fault.chance

    def _draw(self, index: int, number: int) -> float:
        return random.Random(f"{self._seed}:{index}:{number}").random()  # noqa: S311 - repeatable on purpose

    def _name(self, index: int) -> str:
        fault = self._faults[index]
        return f"{index}:{fault.at}:{fault.kind}"


def first(faults: Iterable[Fault], at: str, kind: str) -> Fault | None:
    """The first fault of this moment and kind."""
    return next((fault for fault in faults if fault.at == at and fault.kind == kind), None)


def refuse(faults: Iterable[Fault]) -> None:
    """Raise what the first refusing fault stands for; other faults pass."""
    for fault in faults:
        if fault.kind == "429":
            raise errors.RateLimited(
                "too many requests", retry_after=1.0 if fault.retry_after is None else fault.retry_after
            )
        if fault.kind == "error-500":
            text = "the market answered 500"
            raise errors.AmbiguousOutcome(text) if fault.at == "create" else errors.Transient(text)
        if fault.kind in _REFUSALS:
            raise _REFUSALS[fault.kind]()
