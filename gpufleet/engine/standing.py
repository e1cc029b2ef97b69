"""What the providers of a plan mean for it: refusals, and what their safety nets are worth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

from gpufleet.domain.market import Runtime
from gpufleet.domain.money import usd, usd_per_hour
from gpufleet.engine.lent import is_lent
from gpufleet.engine.scaling import notes as count_notes
from gpufleet.engine.session import Session
from gpufleet.planning.model import WANTED_KINDS, Plan
from gpufleet.providers.base import Provider
from gpufleet.serving.inside import image_of, swallows_command
from gpufleet.spec.ratio import told

_LOW_HOURS = 24


def with_standing(session: Session, plan: Plan) -> Plan:
    """The plan with what its providers forbid, and with what a user should know before the money is spent."""
    names = sorted({action.provider for action in plan.actions if action.kind in WANTED_KINDS and action.offer})
    providers = [session.provider_named(name) for name in names]
    problems = [problem for provider in providers for problem in _problems(session, plan, provider)]
    notes = [note for provider in providers for note in _notes(session, plan, provider)]
    traffic = told(session.fleet)
    return replace(
        plan,
        problems=(*plan.problems, *problems),
        notes=(*([traffic] if traffic else []), *count_notes(session), *sorted(session.notes), *notes),
    )


def _problems(session: Session, plan: Plan, provider: Provider) -> Iterator[str]:
    if refused := provider.caps.create_refused:
        yield refused
    here = [a.node for a in plan.actions if a.offer and a.offer.provider == provider.name]
    if len(here) > 1 and not provider.caps.private_network:
        yield (
            f"nodes of {provider.name} cannot reach each other by private addresses, so no KV cache can be handed over "
            "between them: rent the pools of one fleet elsewhere"
        )
    if provider.caps.keeps_entrypoint:
        yield from _images_that_cannot_start(session, plan, provider)


def _images_that_cannot_start(session: Session, plan: Plan, provider: Provider) -> Iterator[str]:
    """Images in which the provider gives nobody a way to start an SSH server."""
    here = [a for a in plan.actions if a.kind in WANTED_KINDS and a.offer and a.offer.provider == provider.name]
    inside = [a.node for a in here if a.node and a.offer and a.offer.runtime is Runtime.INSIDE]
    for image in sorted({image_of(session.fleet, node) for node in inside}):
        if swallows_command(image):
            yield (
                f"{provider.name} starts a container with its image's own entrypoint, and that of {image} runs vLLM "
                "only: set versions.vllm_image to an image whose entrypoint runs its arguments"
            )


def _notes(session: Session, plan: Plan, provider: Provider) -> Iterator[str]:
    if is_lent(provider):
        return
    yield _end_of_rentals(session, provider)
    yield from _of_offers(session, plan, provider)
    account = session.whose(provider)
    if account.balance_usd is not None:
        yield _balance(provider, account.balance_usd, plan.usd_per_hour_after)
    limit = account.spend_limit_usd_per_hour
    if limit is not None and plan.usd_per_hour_after > limit:
        yield f"{provider.name} lets this account spend {usd_per_hour(limit)}, less than the plan needs"


def _of_offers(session: Session, plan: Plan, provider: Provider) -> Iterator[str]:
    offers = [action.offer for action in plan.actions if action.offer and action.offer.provider == provider.name]
    ends = [offer.contract_end for offer in offers if offer.contract_end is not None]
    if ends:
        yield f"{provider.name} takes the first of these nodes back at {min(ends):%Y-%m-%d %H:%M} UTC"
    if session.fleet.network.rdma == "required" and any(offer.interconnect == "unknown" for offer in offers):
        yield f"{provider.name} does not tell whether these nodes have RDMA: each is checked, and ended without it"


def _end_of_rentals(session: Session, provider: Provider) -> str:
    ttl = session.fleet.budget.ttl
    if provider.caps.server_expiry and ttl:
        return f"{provider.name} itself ends each node at its ttl, even if nobody comes back"
    if provider.caps.server_expiry:
        return f"{provider.name} can end nodes by itself: set budget.ttl and a lost fleet ends without you"
    how = "set budget.ttl and run" if ttl is None else "run"
    return f"{provider.name} never ends a node by itself; {how} `gpufleet reap` from cron"


def _balance(provider: Provider, balance: Decimal, rate: Decimal) -> str:
    if rate <= 0:
        return f"{provider.name}: {usd(balance)} left on the account"
    hours = balance / rate
    warning = ", less than a day" if hours < _LOW_HOURS else ""
    return f"{provider.name}: {usd(balance)} left, enough for {hours:.0f} h at {usd_per_hour(rate)}{warning}"
