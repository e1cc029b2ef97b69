"""Which units of which offers the pools share out: the most that fit, and the cheapest set of those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from gpufleet.domain.market import Offer

Taken = dict[str, list[Offer]]
"""Offers per pool, one entry per node."""


@dataclass(frozen=True)
class _Unit:
    """One node's worth of an offer, and the pools that may have it."""

    offer: Offer
    pools: tuple[str, ...]


def cheapest_match(needs: Mapping[str, int], market: Mapping[str, Sequence[Offer]]) -> Taken:
    """The largest set of offer units that the pools can share out, and the cheapest among those.

    Units are tried from the cheapest on, and one that is taken moves to another pool when that makes room (augmenting
    paths); a unit's price does not depend on its pool, so this greedy order is optimal. What found no room finds none
    later either, nor does any other unit for the same pools: the pools that it could reach only get fuller. So a
    market of thousands of offers costs one failed search per set of pools, not one per offer.

    Args:
        needs: nodes per pool.
        market: offers per pool; an offer that stands in several pools has its stock counted once.
    """
    wanted = sum(needs.values())
    taken: dict[str, list[_Unit]] = {pool: [] for pool in needs}
    hopeless: set[tuple[str, ...]] = set()
    for unit in _by_price(needs, market):
        stock = wanted if unit.offer.stock is None else unit.offer.stock
        for _ in range(min(stock, wanted)):
            if unit.pools in hopeless:
                break
            if not _take(unit, needs, taken, set()):
                hopeless.add(unit.pools)
    return {pool: [unit.offer for unit in units] for pool, units in taken.items()}


def _take(unit: _Unit, needs: Mapping[str, int], taken: Mapping[str, list[_Unit]], tried: set[str]) -> bool:
    for pool in unit.pools:
        if pool not in tried and len(taken[pool]) < needs[pool]:
            taken[pool].append(unit)
            return True
    return any(pool not in tried and _move_one(unit, pool, needs, taken, tried) for pool in unit.pools)


def _move_one(
    unit: _Unit, pool: str, needs: Mapping[str, int], taken: Mapping[str, list[_Unit]], tried: set[str]
) -> bool:
    """Put the unit in the place of one that can go to another pool."""
    tried.add(pool)
    for position, other in enumerate(taken[pool]):
        if not tried.issuperset(other.pools) and _take(other, needs, taken, tried):
            taken[pool][position] = unit
            return True
    return False


def _by_price(needs: Mapping[str, int], market: Mapping[str, Sequence[Offer]]) -> list[_Unit]:
    offers = {identity(offer): offer for found in market.values() for offer in found}
    pools: dict[tuple[str, str], dict[str, None]] = {}
    for pool in needs:
        for offer in market.get(pool, ()):
            pools.setdefault(identity(offer), {})[pool] = None
    units = [_Unit(offer, tuple(pools.get(name, ()))) for name, offer in offers.items()]
    return sorted(units, key=lambda unit: price_order(unit.offer))


def identity(offer: Offer) -> tuple[str, str]:
    """What tells an offer from every other one."""
    return (offer.provider, offer.offer_id)


def price_order(offer: Offer) -> tuple[Decimal, str, str]:
    """Sorts the cheapest first, and equal prices always the same way."""
    return (offer.usd_per_hour, offer.provider, offer.offer_id)
