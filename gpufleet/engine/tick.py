"""``tick``: the one step that cron, a Kubernetes CronJob or ``watch`` takes, as often as it likes.

It settles what earlier runs left, ends what has outlived its ttl, holds the budget, follows the schedule, and replaces
what is lost or sick, by planning and carrying out the plan, as `up` does. It starts no fleet that is not to run.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpufleet.domain.money import usd_per_hour
from gpufleet.engine.api import carry_out, make_plan
from gpufleet.engine.down import take_down
from gpufleet.engine.hooks import Hook, try_hook
from gpufleet.engine.reap import end_what_is_due, is_due
from gpufleet.engine.release import ending
from gpufleet.engine.session import Session, now
from gpufleet.errors import InvalidFleet
from gpufleet.ledger import costs
from gpufleet.planning.model import ActionKind, Plan
from gpufleet.planning.schedule import midnight
from gpufleet.planning.spending import Level, Spending, affordable, spending
from gpufleet.reporting.words import named


@dataclass(frozen=True)
class Ticked:
    """What a tick did."""

    fleet: str
    did: tuple[str, ...] = ()
    """A few words each; empty when there was nothing to do."""
    warnings: tuple[str, ...] = ()

    @property
    def quiet(self) -> bool:
        """Whether there is nothing that anybody needs to read."""
        return not self.did and not self.warnings


def tick(session: Session) -> Ticked:
    """Bring the fleet to what it is to be now. The fleet's lock is held by the caller.

    Raises:
        What `up` and `down` raise. The next tick goes on.
    """
    session.look_again()
    fleet = session.fleet.name
    record = session.store.fleet(fleet)
    if record is None or not record.running:
        return Ticked(fleet, _tidy_up(session))
    if due := [r.node for r in session.store.rentals(fleet) if is_due(r)]:
        return Ticked(fleet, (_end(session, f"budget.ttl of {named(due)} is over"),))
    stand = _spending(session)
    if stand.level is Level.NOTHING:
        return Ticked(fleet, (_end(session, stand.why),))
    session.run_with(affordable(session.fleet, session.fleet.counts, stand.level))
    plan = make_plan(session)
    warnings = (stand.why,) if stand.level else ()
    if stand.level:
        try_hook(session, Hook.BUDGET, reason=stand.why)
    if not plan.changes and not ending(session):
        return Ticked(fleet, (), warnings)
    if plan.refusal:
        raise InvalidFleet(plan.refusal, hint=f"gpufleet plan {session.path}")
    _carry_out(session, plan)
    return Ticked(fleet, told(plan), warnings)


def _carry_out(session: Session, plan: Plan) -> None:
    """As `up` does, with the same hooks, and one more for nodes that were lost."""
    if lost := [str(action.node) for action in plan.of(ActionKind.REPLACE)]:
        try_hook(session, Hook.NODE_LOST, nodes=" ".join(lost))
    carry_out(session, plan)


def told(plan: Plan) -> tuple[str, ...]:
    """``terminate native/1: not wanted any more``, one for each kind and reason, then the price per hour."""
    groups: dict[tuple[ActionKind, str], list[str]] = {}
    for action in plan.actions:
        if action.kind not in {ActionKind.KEEP, ActionKind.DRAIN}:
            groups.setdefault((action.kind, action.reason), []).append(str(action.node))
    lines = [f"{kind} {', '.join(nodes)}: {reason}" for (kind, reason), nodes in groups.items()]
    return (*lines, f"now {usd_per_hour(plan.usd_per_hour_after)}") if lines else ()


def _spending(session: Session) -> Spending:
    at, fleet = now(), session.fleet
    today = costs.spent_since(session.store, fleet.name, midnight(fleet, at), at)
    return spending(fleet.budget, total=costs.bill(session.store, fleet.name, at).total, today=today)


def _end(session: Session, why: str) -> str:
    """Everything ends, and no later tick brings it up again."""
    try_hook(session, Hook.PRE_DOWN, reason=why)
    session.store.set_running(session.fleet.name, running=False)
    bill = take_down(session)
    try_hook(session, Hook.POST_DOWN, reason=why, usd=str(bill.total))
    return f"down: {why}"


def _tidy_up(session: Session) -> tuple[str, ...]:
    """A fleet that is not to run: go on with what is to end."""
    if not (session.owing_providers() or session.store.doubtful_providers(session.fleet.name)):
        return ()
    done = end_what_is_due(session)
    return (f"ended: {', '.join(done.ended)}",) if done.ended else ()
