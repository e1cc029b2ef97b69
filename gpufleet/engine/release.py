"""End rentals, and believe it only when the provider has said so twice.

A 2xx to a terminate call is a request, not evidence. An obligation closes after two observations in a row of a complete
listing that shows the instance terminated, or lacks it while a read by id says it does not exist. The absence of a
rental so fresh that the provider may not show it yet is no evidence.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Decimal

from gpufleet.domain.market import ExtraKind
from gpufleet.domain.money import usd_per_hour
from gpufleet.domain.progress import Progress, ProgressState
from gpufleet.engine.endings import Seen, ask, due, look
from gpufleet.engine.lent import is_lent
from gpufleet.engine.session import Session
from gpufleet.errors import GpufleetError, Interrupted, InvalidFleet, ProviderRefused, StillBilling
from gpufleet.ledger.errors import LedgerConflict
from gpufleet.ledger.obligations import INSTANCE
from gpufleet.ledger.records import Obligation, Rental
from gpufleet.providers.base import Provider
from gpufleet.providers.errors import AuthError

CONFIRM_SECONDS = 900.0
"""How long `confirm_gone` waits before it gives up with `StillBilling`; the obligations stay open."""
_PARALLEL = 16
_LONGEST_PAUSE = 30.0
_ASK_AGAIN_PAUSES = 1.5
"""Each time a provider took the request and went on all the same, the next look comes that much later."""


def decide_end(session: Session, rental: Rental, reason: str) -> None:
    """Write down that a rental is to end; from here on every run tries until it is gone."""
    session.store.oblige(rental.provider, rental.instance_id, fleet=session.fleet.name, reason=reason)
    session.sink(Progress(rental.node, _word(session, rental), ProgressState.RUNNING, message=reason))


def ending(session: Session) -> list[Obligation]:
    """What is to end and is not confirmed gone."""
    return session.store.ending_obligations(session.fleet.name)


def ask_end(session: Session, rentals: Sequence[Rental]) -> None:
    """Ask at once for the end of rentals whose end is decided, so that they bill no longer than they must.

    What fails here is asked again by `confirm_gone`, which also waits for the evidence.
    """
    refs = {(r.provider, r.instance_id) for r in rentals} | {(r.provider, r.cluster_id) for r in rentals}
    _Ends(session).ask([o for o in ending(session) if (o.provider, o.ref) in refs])


def confirm_gone(session: Session, *, give_up: float = CONFIRM_SECONDS) -> None:
    """Terminate everything that is to end, and wait until all of it is confirmed gone.

    A lent host is cleaned up before it is given back: from that moment on it may be somebody else's.

    Raises:
        StillBilling: something could not be confirmed within ``give_up`` seconds, or nobody may ask (other credentials,
            a broken provider section); says what and what it costs. Everything else is ended before that is told.
        Interrupted: the user asked to stop; the obligations stay.
    """
    deadline = time.monotonic() + give_up
    ends = _Ends(session)
    pause = 0.0
    while open_ones := ending(session):
        hint = f"gpufleet down {session.path}"
        if session.stop.wait(pause):
            raise Interrupted(_still(session, open_ones), hint=hint)
        if why := ends.hopeless(open_ones):
            raise StillBilling(f"{_still(session, open_ones)}: {why.message}", where=why.where, hint=why.hint or hint)
        if time.monotonic() > deadline:
            raise StillBilling(_still(session, open_ones), hint=hint)
        ends.ask(open_ones)
        pause = ends.observe(open_ones)
        _tell_gone(session, open_ones)


def _tell_gone(session: Session, before: Sequence[Obligation]) -> None:
    """Tell which nodes have ended; one whose rental was only replaced has not."""
    left = {o.obligation_id for o in ending(session)}
    held = {r.node for r in session.store.rentals(session.fleet.name)}
    for obligation in before:
        rental = session.store.rental(obligation.provider, obligation.ref)
        if rental and obligation.obligation_id not in left and rental.node not in held:
            session.sink(Progress(rental.node, "confirm", ProgressState.DONE))


@dataclass
class _Ends:
    """One run's way to the end of its rentals."""

    session: Session
    asked: set[int] = field(default_factory=set)
    """Obligations whose provider has taken the request."""
    in_vain: int = 0
    """How often something ran on although its end had been taken."""
    blocked: dict[str, GpufleetError] = field(default_factory=dict)
    """Providers that cannot be asked in this run, whatever is waited for."""

    def hopeless(self, open_ones: Sequence[Obligation]) -> GpufleetError | None:
        """Why none of these can be ended in this run."""
        causes = [self.blocked.get(o.provider) for o in open_ones]
        return causes[0] if all(causes) else None

    def ask(self, open_ones: Sequence[Obligation]) -> None:
        """Ask for the end of each that was not asked yet and whose turn has come."""
        every = self.session.store.open_obligations(self.session.fleet.name)
        now_due = [o for o in open_ones if o.obligation_id not in self.asked and due(o, every)]
        ready = [o for o in now_due if self._provider(o.provider)]
        if ready:
            with ThreadPoolExecutor(max_workers=min(_PARALLEL, len(ready))) as pool:
                taken = pool.map(self._ask, ready)
                self.asked |= {o.obligation_id for o, ok in zip(ready, taken, strict=True) if ok}

    def observe(self, open_ones: Sequence[Obligation]) -> float:
        """Look once at every provider; returns how long to wait before the next look."""
        pauses = [0.1]
        for name in sorted({o.provider for o in open_ones}):
            if provider := self._provider(name):
                again = self._observe(provider, [o for o in open_ones if o.provider == name])
                self.in_vain += bool(again & self.asked)
                self.asked -= again
                pauses.append(provider.caps.poll_seconds)
        return min(max(pauses) * _ASK_AGAIN_PAUSES**self.in_vain, max(_LONGEST_PAUSE, *pauses))

    def _provider(self, name: str) -> Provider | None:
        """The provider, once it is sure that it speaks of the account that these rentals were made with."""
        if name in self.blocked:
            return None
        try:
            provider = self.session.provider_named(name)
            self.session.account(provider)
        except (InvalidFleet, LedgerConflict, ProviderRefused) as error:
            self.blocked[name] = error
            return None
        return provider

    def _ask(self, obligation: Obligation) -> bool:
        """Ask for one end; true when the request was taken."""
        provider = self.session.provider_named(obligation.provider)
        try:
            return ask(self.session, provider, obligation)
        except ProviderRefused as refusal:
            self._refused(provider, [obligation], refusal)
            return False

    def _observe(self, provider: Provider, obligations: Sequence[Obligation]) -> set[int]:
        """One complete observation of a provider; returns those that have to be asked again."""
        unseen = {o.obligation_id: o for o in obligations}
        again = set()
        try:
            for obligation, seen in look(self.session, provider, obligations):
                del unseen[obligation.obligation_id]
                if seen.refusal is not None:
                    self._refused(provider, [obligation], seen.refusal)
                    continue
                self._record(obligation, seen)
                if seen.ask_again:
                    again.add(obligation.obligation_id)
        except ProviderRefused as refusal:
            self._refused(provider, list(unseen.values()), refusal)
        return again

    def _record(self, obligation: Obligation, seen: Seen) -> None:
        store = self.session.store
        if seen.instance is not None:
            store.update_rental(seen.instance)
        store.record_observation(obligation.obligation_id, gone=seen.gone, ended_at=seen.ended_at)

    def _refused(self, provider: Provider, obligations: Sequence[Obligation], refusal: ProviderRefused) -> None:
        for obligation in obligations:
            self.session.store.record_observation(obligation.obligation_id, gone=False, error=refusal.message)
        if isinstance(refusal, AuthError):
            self.blocked[provider.name] = refusal


def _word(session: Session, rental: Rental) -> str:
    try:
        return "release" if is_lent(session.provider_named(rental.provider)) else "terminate"
    except InvalidFleet:
        return "terminate"


def _still(session: Session, obligations: Sequence[Obligation]) -> str:
    rentals = {(r.provider, r.instance_id): r for r in session.store.rentals(session.fleet.name)}
    mine = [rentals[o.provider, o.ref] for o in obligations if o.kind == INSTANCE and (o.provider, o.ref) in rentals]
    others = [o for o in obligations if o.kind != INSTANCE]
    told = [f"{r.node} ({r.provider} {r.instance_id})" for r in mine]
    told += [f"{o.kind} {o.ref} at {o.provider}" for o in others]
    # What a cluster costs is what its members cost.
    extras = [o.usd_per_hour for o in others if o.kind != ExtraKind.CLUSTER and o.usd_per_hour is not None]
    rate = usd_per_hour(sum((*(r.usd_per_hour for r in mine), *extras), Decimal(0)))
    what = "1 thing is" if others else "1 rental is"
    if len(obligations) > 1:
        what = f"{len(obligations)} {'things' if others else 'rentals'} are"
    return f"{what} not confirmed gone, {rate}: {', '.join(told)}"
