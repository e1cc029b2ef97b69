"""What is lent to the fleet and not rented: who has it, as this state directory knows. Imports no SSH."""

from __future__ import annotations

from dataclasses import replace

from gpufleet.engine.session import Session
from gpufleet.planning.model import Plan
from gpufleet.providers.base import Lifetime, Provider


def is_lent(provider: Provider) -> bool:
    """Whether what this provider gives goes on when we give it back."""
    return provider.caps.lifetime is Lifetime.RELEASE


def with_holders(session: Session, plan: Plan) -> Plan:
    """Tell in a plan that lacks hosts which ones other fleets of this state directory hold."""
    if not plan.problems:
        return plan
    lenders = {provider.name for provider in session.providers() if is_lent(provider)}
    others = [r for r in session.store.rentals() if r.provider in lenders and r.fleet != session.fleet.name]
    told = sorted(f"host {r.host_id} is leased for {r.node} of fleet {r.fleet}" for r in others)
    return replace(plan, problems=(*plan.problems, *told))
