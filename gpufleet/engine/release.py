"""End rentals, and believe it only when the provider has said so twice.

A 2xx to a terminate call is a request, not evidence. An obligation closes after two observations in a row of a complete
listing that shows the instance terminated, or lacks it while a read by id says it does not exist.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from gpufleet.domain.market import Instance, InstanceState
from gpufleet.domain.money import usd_per_hour
from gpufleet.domain.progress import Progress, ProgressState
from gpufleet.engine.hosts import leave_host
from gpufleet.engine.lent import is_lent
from gpufleet.engine.listing import read
from gpufleet.engine.session import Session
from gpufleet.errors import Interrupted, ProviderRefused, StillBilling
from gpufleet.ledger.records import Obligation, ObligationState, Rental
from gpufleet.providers.base import Provider, TerminateAck
from gpufleet.providers.errors import InstanceNotFound

CONFIRM_SECONDS = 900.0
"""How long `confirm_gone` waits before it gives up with `StillBilling`; the obligations stay open."""
_PARALLEL = 16


def decide_end(session: Session, rental: Rental, reason: str) -> None:
    """Write down that a rental is to end; from here on every run tries until it is gone."""
    session.store.oblige(rental.provider, rental.instance_id, fleet=session.fleet.name, reason=reason)
    phase = "release" if is_lent(session.provider_named(rental.provider)) else "terminate"
    session.sink(Progress(rental.node, phase, ProgressState.RUNNING, message=reason))


def ending(session: Session) -> list[Obligation]:
    """What is to end and is not confirmed gone."""
    return [o for o in session.store.open_obligations(session.fleet.name) if o.state is ObligationState.ENDING]


def confirm_gone(session: Session, *, give_up: float = CONFIRM_SECONDS) -> None:
    """Terminate everything that is to end, and wait until all of it is confirmed gone.

    A lent host is cleaned up before it is given back: from that moment on it may be somebody else's.

    Raises:
        StillBilling: something could not be confirmed within ``give_up`` seconds; says what and what it costs.
        Interrupted: the user asked to stop; the obligations stay.
    """
    deadline = time.monotonic() + give_up
    asked: set[int] = set()
    pause = 0.0
    while open_ones := ending(session):
        if session.stop.wait(pause):
            raise Interrupted(_still(session, open_ones), hint=f"gpufleet down {session.path}")
        if time.monotonic() > deadline:
            raise StillBilling(_still(session, open_ones), hint=f"gpufleet down {session.path}")
        asked |= _terminate(session, [o for o in open_ones if o.obligation_id not in asked])
        for provider_name in sorted({o.provider for o in open_ones}):
            mine = [o for o in open_ones if o.provider == provider_name]
            asked -= _observe(session, session.provider_named(provider_name), mine)
        pause = max((session.provider_named(o.provider).caps.poll_seconds for o in open_ones), default=1.0)


def _terminate(session: Session, obligations: Sequence[Obligation]) -> set[int]:
    """Ask for the end of each; returns those whose request was taken."""
    if not obligations:
        return set()
    with ThreadPoolExecutor(max_workers=min(_PARALLEL, len(obligations))) as pool:
        taken = pool.map(lambda o: _terminate_one(session, o), obligations)
    return {o.obligation_id for o, ok in zip(obligations, taken, strict=True) if ok}


def _terminate_one(session: Session, obligation: Obligation) -> bool:
    provider = session.provider_named(obligation.provider)
    rental = session.store.rental(obligation.provider, obligation.ref)
    if rental is not None and is_lent(provider) and rental.state is not InstanceState.TERMINATED:
        leave_host(session, provider, rental)
    try:
        ack = read(provider, lambda: provider.terminate(obligation.ref), give_up=5.0)
    except ProviderRefused as refusal:
        session.store.record_observation(obligation.obligation_id, gone=False, error=refusal.message)
        return False
    return ack is not TerminateAck.NOT_YET


def _observe(session: Session, provider: Provider, obligations: Sequence[Obligation]) -> set[int]:
    """One complete observation of a provider; returns those that have to be asked again."""
    try:
        listed = {i.instance_id: i for i in read(provider, provider.inventory).instances}
    except ProviderRefused as refusal:
        for obligation in obligations:
            session.store.record_observation(obligation.obligation_id, gone=False, error=refusal.message)
        return set()
    again = set()
    for obligation in obligations:
        instance = listed.get(obligation.ref) or _by_id(provider, obligation.ref)
        gone = instance is None or instance.state is InstanceState.TERMINATED
        if instance is not None:
            session.store.update_rental(instance)
        ended_at = instance.ended_at if instance is not None else None
        session.store.record_observation(obligation.obligation_id, gone=gone, ended_at=ended_at)
        if not gone and instance is not None and instance.state is not InstanceState.TERMINATING:
            again.add(obligation.obligation_id)
    return again


def _by_id(provider: Provider, instance_id: str) -> Instance | None:
    try:
        return read(provider, lambda: provider.get(instance_id))
    except InstanceNotFound:
        return None


def _still(session: Session, obligations: Sequence[Obligation]) -> str:
    rentals = {r.instance_id: r for r in session.store.rentals(session.fleet.name)}
    mine = [rentals[o.ref] for o in obligations if o.ref in rentals]
    rate = sum((r.usd_per_hour for r in mine), start=type(mine[0].usd_per_hour)(0)) if mine else None
    names = ", ".join(f"{r.node} ({r.provider} {r.instance_id})" for r in mine)
    return f"{len(obligations)} rentals are not confirmed gone and cost {usd_per_hour(rate)}: {names}"
