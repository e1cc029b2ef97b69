"""``adopt``: take over instances that no record of this ledger knows, after its state was lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from gpufleet.domain.market import Instance, Offer, OfferQuery
from gpufleet.domain.nodes import NodeName
from gpufleet.engine.keys import is_ours, new_key, parse_key
from gpufleet.engine.listing import read
from gpufleet.engine.session import Session
from gpufleet.errors import ProviderRefused, UsageError
from gpufleet.ledger.records import Intent
from gpufleet.providers.base import Provider
from gpufleet.providers.errors import InstanceNotFound

_PESSIMISTIC_INCREMENT_S = 3600


@dataclass(frozen=True)
class Adoption:
    """One instance and the node that it shall be."""

    node: NodeName
    instance: Instance
    usd_per_hour: Decimal


def find(
    session: Session, provider: Provider, *, named: Mapping[NodeName, str], rate: Decimal | None
) -> list[Adoption]:
    """What can be taken over: what the user names, and what carries a key of this fleet and is in no record.

    Args:
        named: instance ids by node; for these nodes no other instance is looked at.
        rate: USD per hour where the provider tells none.

    Raises:
        UsageError: two instances for one node, a node that is rented already, or an unknown price; says how to choose.
        InstanceNotFound: the provider has no such instance.
    """
    session.account(provider)
    held = {r.node for r in session.store.rentals(session.fleet.name)}
    chosen = {node: [_get(provider, instance_id)] for node, instance_id in named.items()}
    for instance in _unknown(session, provider):
        for node in _nodes_of(session, instance):
            if node not in named and node not in held:
                chosen.setdefault(node, []).append(instance)
    for node, instances in chosen.items():
        _check(session, node, instances, held)
    return [Adoption(node, found[0], _price(found[0], rate)) for node, found in sorted(chosen.items())]


def take_over(session: Session, provider: Provider, adoptions: Sequence[Adoption]) -> None:
    """Record them, each in one transaction; from here on they are rentals like others."""
    offers = _offers(provider)
    for one in adoptions:
        session.store.adopt(_intent(session, provider, one, offers), one.instance)


def _get(provider: Provider, instance_id: str) -> Instance:
    try:
        return read(provider, lambda: provider.get(instance_id))
    except InstanceNotFound:
        raise UsageError(f"{provider.name} has no instance {instance_id}", hint="gpufleet reconcile") from None


def _unknown(session: Session, provider: Provider) -> list[Instance]:
    known = {r.instance_id for r in session.store.rentals(live_only=False) if r.provider == provider.name}
    listed = read(provider, provider.inventory).instances
    return [
        i for i in listed if i.state.may_bill and is_ours(i.name, session.fleet.name) and i.instance_id not in known
    ]


def _nodes_of(session: Session, instance: Instance) -> list[NodeName]:
    key = parse_key(instance.name)
    return [node for node in session.fleet.nodes() if key is not None and key.may_be(node)]


def _check(session: Session, node: NodeName, instances: Sequence[Instance], held: set[NodeName]) -> None:
    if node not in session.fleet.nodes():
        raise UsageError(f"the file has no node {node}", hint=f"gpufleet plan {session.path}")
    if node in held:
        raise UsageError(f"{node} is rented already", hint=f"gpufleet status {session.path}")
    if len(instances) > 1:
        ids = ", ".join(i.instance_id for i in instances)
        raise UsageError(
            f"several instances may be {node}: {ids}",
            hint=f"choose one: gpufleet adopt {session.path} {node}={instances[0].instance_id}",
        )


def _price(instance: Instance, rate: Decimal | None) -> Decimal:
    price = instance.usd_per_hour if instance.usd_per_hour is not None else rate
    if price is None:
        raise UsageError(
            f"{instance.provider} does not say what {instance.instance_id} costs", hint="give --usd-per-hour"
        )
    return price


def _offers(provider: Provider) -> list[Offer]:
    """For the billing terms; a market that cannot be read now leaves the pessimistic ones."""
    try:
        return read(provider, lambda: provider.offers(OfferQuery()), give_up=10.0)
    except ProviderRefused:
        return []


def _intent(session: Session, provider: Provider, one: Adoption, offers: Sequence[Offer]) -> Intent:
    instance, pool = one.instance, session.fleet.pools[one.node.pool]
    like = next((o for o in offers if o.gpu == (instance.gpu or pool.gpu) and o.region == instance.region), None)
    key = instance.name if parse_key(instance.name) else None
    return Intent(
        key=key or new_key(session.fleet.name, one.node, session.store.owner_id()),
        fleet=session.fleet.name,
        node=one.node,
        provider=provider.name,
        account=session.account(provider),
        offer_id=like.offer_id if like else "unknown",
        gpu=instance.gpu or pool.gpu,
        usd_per_hour=one.usd_per_hour,
        max_usd_per_hour=pool.max_usd_per_hour or one.usd_per_hour,
        region=instance.region,
        billing_increment_s=like.billing_increment_seconds if like else _PESSIMISTIC_INCREMENT_S,
        min_rental_s=like.min_rental_seconds if like else 0,
        runtime=like.runtime if like else provider.caps.runtime,
    )
