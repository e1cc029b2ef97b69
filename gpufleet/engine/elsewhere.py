"""Another plan where every offer was refused before anything was rented: other regions, then other providers.

A fleet of which something is rented stays where that is; the next `up` completes it there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal

from gpufleet.domain.market import Offer
from gpufleet.domain.money import usd_per_hour
from gpufleet.domain.nodes import NodeName
from gpufleet.domain.progress import Progress
from gpufleet.engine.bringup import Target, cluster_task
from gpufleet.engine.observe import plan_now
from gpufleet.engine.refusals import ASK_ELSEWHERE, REFUSED_HERE
from gpufleet.engine.session import Session
from gpufleet.errors import ProviderRefused
from gpufleet.planning.model import ActionKind, Plan


def plan_elsewhere(
    session: Session, agreed: Plan, targets: Mapping[NodeName, Target], failures: Mapping[str, BaseException]
) -> Plan | None:
    """A plan without what was refused, and for no more than was agreed to or the file's own limits allow.

    None where there is none, where something is rented or may be, or where refusals are not all that went wrong.

    Args:
        agreed: the plan that the user has accepted.
        failures: of this run, by task.
    """
    refused = {task: failure for task, failure in failures.items() if isinstance(failure, ASK_ELSEWHERE)}
    if not refused or len(refused) < len(failures) or _has_something(session):
        return None
    useless = {_identity(offer) for target in targets.values() for offer in _useless(session, target, refused)}
    if not useless:
        return None
    limits = {pool: _limit(session, agreed, pool) for pool in session.offers}
    session.offers = {
        pool: [o for o in offers if _identity(o) not in useless and o.usd_per_hour <= limits[pool]]
        for pool, offers in session.offers.items()
    }
    plan = plan_now(session)
    if plan.refusal or plan.usd_per_hour_after > _most(session, agreed, plan):
        return None
    _tell(session, plan, next(iter(refused.values())))
    return plan


def _identity(offer: Offer) -> tuple[str, str]:
    return (offer.provider, offer.offer_id)


def _has_something(session: Session) -> bool:
    name = session.fleet.name
    return bool(session.store.rentals(name) or session.store.open_intents(name))


def _useless(session: Session, target: Target, refused: Mapping[str, ProviderRefused]) -> Iterable[Offer]:
    """The offers that the refusal of this node shows to be no use: all that it was tried with, or the provider's."""
    failure = refused.get(f"acquire {target.node}") or refused.get(cluster_task(target))
    if not isinstance(failure, REFUSED_HERE):
        return target.offers if failure else ()
    providers = {offer.provider for offer in target.offers}
    return [offer for offers in session.offers.values() for offer in offers if offer.provider in providers]


def _limit(session: Session, agreed: Plan, pool: str) -> Decimal:
    """What a node of a pool may cost: as the file says, else the most that the user has seen for one."""
    limit = session.fleet.pools[pool].max_usd_per_hour
    seen = [action.usd_per_hour for action in agreed.actions if action.node.pool == pool]
    return max(seen, default=Decimal(0)) if limit is None else limit


def _most(session: Session, agreed: Plan, plan: Plan) -> Decimal:
    """What all nodes may cost together: no more than was agreed to, unless the file has a limit for each."""
    limits = [session.fleet.pools[action.node.pool].max_usd_per_hour for action in plan.of(ActionKind.CREATE)]
    return agreed.usd_per_hour_after if None in limits else plan.usd_per_hour_after


def _tell(session: Session, plan: Plan, why: ProviderRefused) -> None:
    offers = [action.offer for action in plan.of(ActionKind.CREATE) if action.offer]
    where = ", ".join(sorted({f"{offer.provider} {offer.region}".strip() for offer in offers}))
    told = f"refused ({why.message}); going on at {where} for {usd_per_hour(plan.usd_per_hour_after)}"
    session.sink(Progress(None, "rent", message=told))
