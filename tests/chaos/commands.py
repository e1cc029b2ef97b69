"""What `up` and `down` do about money, in their order, without what they do on nodes."""

from __future__ import annotations

from gpufleet.engine.down import _decide, _find_and_decide, _look_once_more
from gpufleet.engine.observe import plan_now
from gpufleet.engine.release import ask_end, confirm_gone, decide_end, ending
from gpufleet.engine.rent import Wanted, rent
from gpufleet.engine.session import Session
from gpufleet.engine.sweep import sweep
from gpufleet.engine.up import _offers, _unwanted
from gpufleet.errors import StillBilling
from gpufleet.planning.model import ActionKind
from tests.providers.places import PUBLIC_KEY


def up(session: Session) -> None:
    listings = sweep(session)
    plan = plan_now(session)
    for rental in (unwanted := _unwanted(session, plan)):
        decide_end(session, rental, "not wanted any more")
    ask_end(session, unwanted)
    for action in plan.actions:
        if action.kind in {ActionKind.CREATE, ActionKind.REPLACE} and action.offer:
            offers = _offers(session, action, action.offer.region)
            wanted = Wanted(action.node, offers, None, 100, None, PUBLIC_KEY)
            provider = session.provider_named(action.provider)
            rent(session, provider, listings[action.provider], wanted)
    if ending(session):
        confirm_gone(session, give_up=20.0)
    if plan.problems:
        raise StillBilling(str(plan.problems))


def down(session: Session) -> None:
    providers = session.owing_providers()
    _find_and_decide(session, providers)
    confirm_gone(session, give_up=20.0)
    _look_once_more(session, providers)
    _decide(session)
    if session.store.open_intents(session.fleet.name):
        raise StillBilling("create calls are unclear")
