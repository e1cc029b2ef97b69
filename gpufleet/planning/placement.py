"""Which offer each missing node gets: the cheapest set that fits, in one region where the nodes must be close."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from gpufleet.domain.market import Offer
from gpufleet.domain.nodes import NodeName
from gpufleet.planning.matching import Taken, cheapest_match, identity, price_order
from gpufleet.planning.model import Desired
from gpufleet.spec.model import Pool

_REGIONS_TOLD = 3
_FABRICS = {"ib", "roce"}


@dataclass(frozen=True)
class Placement:
    """The outcome: an offer for each node that got one, and a sentence for what is missing."""

    offers: Mapping[NodeName, Offer]
    problems: tuple[str, ...]


def place(
    desired: Desired,
    missing: Sequence[NodeName],
    market: Mapping[str, Sequence[Offer]],
    regions_in_use: Mapping[str, frozenset[str]],
) -> Placement:
    """Choose offers so that as many nodes as possible get one, at the least total price.

    Args:
        missing: the nodes to rent.
        market: offers per pool; an offer that stands in several pools has its stock counted once.
        regions_in_use: per provider, where the nodes are that stay. New ones join them unless RDMA is off.
    """
    offers: dict[NodeName, Offer] = {}
    problems: list[str] = []
    groups = sorted({_providers(desired, node) for node in missing})
    for group in groups:
        nodes = [node for node in missing if _providers(desired, node) == group]
        found = _place_group(desired, group, nodes, market, regions_in_use)
        offers |= found.offers
        problems += found.problems
    return Placement(offers, tuple(problems))


def _providers(desired: Desired, node: NodeName) -> tuple[str, ...]:
    return tuple(use.use for use in desired.fleet.providers_of(node.pool))


def _place_group(
    desired: Desired,
    providers: Sequence[str],
    nodes: Sequence[NodeName],
    market: Mapping[str, Sequence[Offer]],
    regions_in_use: Mapping[str, frozenset[str]],
) -> Placement:
    """At the provider that has the most of the nodes, the first named among equals; where others stay, with them."""
    if desired.fleet.network.rdma == "off":
        return _place_apart(desired, providers, nodes, market)
    in_use = [name for name in providers if regions_in_use.get(name)]
    tried = [
        _place_at(desired, name, nodes, _at(market, name), regions_in_use.get(name, frozenset()))
        for name in in_use or providers
    ]
    best = max(tried, key=lambda placement: len(placement.offers))
    if len(best.offers) == len(nodes) or len(tried) == 1:
        return best
    return Placement(best.offers, tuple(problem for placement in tried for problem in placement.problems))


def _at(market: Mapping[str, Sequence[Offer]], provider: str) -> dict[str, list[Offer]]:
    return {pool: [offer for offer in offers if offer.provider == provider] for pool, offers in market.items()}


def _place_apart(
    desired: Desired, providers: Sequence[str], nodes: Sequence[NodeName], market: Mapping[str, Sequence[Offer]]
) -> Placement:
    """Nodes that need not be close: each wherever it is cheapest."""
    needs, fitting = _needs(desired, nodes, market)
    taken = cheapest_match(needs, fitting)
    return Placement(_hand_out(nodes, taken), _missing(desired, ", ".join(providers), needs, {"any region": taken}))


def _needs(
    desired: Desired, nodes: Sequence[NodeName], market: Mapping[str, Sequence[Offer]]
) -> tuple[dict[str, int], dict[str, list[Offer]]]:
    """Nodes per pool, and the offers that each pool may take."""
    counts = {pool: sum(node.pool == pool for node in nodes) for pool in desired.fleet.pools}
    needs = {pool: count for pool, count in counts.items() if count}
    pools = desired.fleet.pools
    return needs, {pool: [offer for offer in market.get(pool, ()) if fits(pools[pool], offer)] for pool in needs}


def fits(pool: Pool, offer: Offer) -> bool:
    """Whether a pool's node may be this offer."""
    return (
        offer.gpu == pool.gpu
        and pool.region in {None, offer.region}
        and not offer.spot
        and offer.cluster is None
        and (pool.disk_gb is None or offer.disk_gb is None or offer.disk_gb >= pool.disk_gb)
        and (pool.max_usd_per_hour is None or offer.usd_per_hour <= pool.max_usd_per_hour)
        and offer.stock != 0
    )


def _place_at(
    desired: Desired,
    provider: str,
    nodes: Sequence[NodeName],
    market: Mapping[str, Sequence[Offer]],
    in_use: frozenset[str],
) -> Placement:
    needs, fitting = _needs(desired, nodes, market)
    whole = None if in_use else _as_cluster(desired, nodes, market)
    asked = frozenset(region for pool in needs if (region := desired.fleet.pools[pool].region))
    regions = in_use or asked or {offer.region for offers in fitting.values() for offer in offers}
    choices = {region: cheapest_match(needs, _within(desired, fitting, region)) for region in sorted(regions)}
    if whole is not None and not _is_better(choices, nodes, whole):
        return Placement(dict.fromkeys(nodes, whole), ())
    if not choices:
        return Placement({}, _missing(desired, provider, needs, {"any region": {pool: [] for pool in needs}}))
    ranked = sorted(choices, key=lambda region: (-_size(choices[region]), _price(choices[region]), region))
    best = choices[ranked[0]]
    nearest = {region: choices[region] for region in ranked[:_REGIONS_TOLD]}
    return Placement(
        _hand_out(nodes, best), () if _size(best) == len(nodes) else _missing(desired, provider, needs, nearest)
    )


def _as_cluster(desired: Desired, nodes: Sequence[NodeName], market: Mapping[str, Sequence[Offer]]) -> Offer | None:
    """The cheapest cluster that all of the nodes could be: equal ones, as many as it has."""
    pools = [desired.fleet.pools[node.pool] for node in nodes]
    offers = {identity(o): o for node in nodes for o in market.get(node.pool, ()) if o.cluster}
    fitting = [
        offer
        for offer in offers.values()
        if offer.cluster
        and offer.cluster.min_nodes <= len(nodes) <= offer.cluster.max_nodes
        and all(fits(pool, replace(offer, cluster=None)) for pool in pools)
    ]
    return min(fitting, key=price_order, default=None)


def _is_better(choices: Mapping[str, Taken], nodes: Sequence[NodeName], whole: Offer) -> bool:
    """Whether single nodes are: all of them, known to be on one fabric, and for less."""
    for taken in choices.values():
        single = [offer for offers in taken.values() for offer in offers]
        on_fabric = all(offer.interconnect in _FABRICS for offer in single)
        if len(single) == len(nodes) and on_fabric and _price(taken) < whole.usd_per_hour * len(nodes):
            return True
    return False


def _within(desired: Desired, fitting: Mapping[str, Sequence[Offer]], region: str) -> dict[str, list[Offer]]:
    """Offers of one region; a pool whose region the file names stays there."""
    return {
        pool: [offer for offer in offers if offer.region == (desired.fleet.pools[pool].region or region)]
        for pool, offers in fitting.items()
    }


def _hand_out(nodes: Sequence[NodeName], taken: Taken) -> dict[NodeName, Offer]:
    """Lower indices get the cheaper offers."""
    left = {pool: sorted(offers, key=price_order) for pool, offers in taken.items()}
    return {node: left[node.pool].pop(0) for node in nodes if left[node.pool]}


def _missing(
    desired: Desired, provider: str, needs: Mapping[str, int], choices: Mapping[str, Taken]
) -> tuple[str, ...]:
    lacks = {
        region: [_lack(desired, pool, count, taken) for pool, count in needs.items() if len(taken[pool]) < count]
        for region, taken in choices.items()
    }
    told = "; ".join(f"{region or 'its only region'}: {', '.join(lack)}" for region, lack in lacks.items() if lack)
    if not told:
        return ()
    where = "no single region has every node" if len(choices) > 1 else "not every node can be rented"
    return (f"{provider}: {where} ({told})",)


def _lack(desired: Desired, pool: str, count: int, taken: Taken) -> str:
    limit = desired.fleet.pools[pool].max_usd_per_hour
    price = f" at up to ${limit}/h" if limit is not None else ""
    return f"{count - len(taken[pool])} of {count} {desired.fleet.pools[pool].gpu}{price} for {pool} missing"


def _size(taken: Taken) -> int:
    return sum(len(offers) for offers in taken.values())


def _price(taken: Taken) -> Decimal:
    return sum((offer.usd_per_hour for offers in taken.values() for offer in offers), Decimal(0))
