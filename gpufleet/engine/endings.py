"""How each kind of paid thing is asked to end, in which order, and what counts as having seen it gone.

Instances first, then their volumes; a cluster ends its members with it; scripts and SSH keys last, when nothing is left
that may need them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpufleet.domain.market import Extra, ExtraKind, Instance, InstanceState
from gpufleet.engine.hosts import leave_host
from gpufleet.engine.lent import is_lent
from gpufleet.engine.listing import read
from gpufleet.engine.session import Session
from gpufleet.engine.settling import settling, window_left
from gpufleet.errors import ProviderRefused
from gpufleet.ledger.obligations import INSTANCE
from gpufleet.ledger.records import Obligation
from gpufleet.providers.base import Cluster, HasExtras, Provider, RentsClusters, TerminateAck
from gpufleet.providers.errors import InstanceNotFound, ProtocolError, Unsupported

_ASK_SECONDS = 5.0
_LAST = {ExtraKind.SCRIPT, ExtraKind.SSH_KEY}


@dataclass(frozen=True)
class Seen:
    """What one complete look showed of one obligation."""

    gone: bool
    ask_again: bool = False
    instance: Instance | None = None
    """How the provider reports an instance now."""
    ended_at: datetime | None = None
    refusal: ProviderRefused | None = None
    """Why this one could not be seen, though others were."""


def due(obligation: Obligation, open_ones: Iterable[Obligation]) -> bool:
    """Whether its turn has come, given everything of the fleet that is not confirmed gone."""
    others = [o for o in open_ones if o.provider == obligation.provider]
    if obligation.kind in _LAST:
        return not any(o.kind in {INSTANCE, ExtraKind.CLUSTER} for o in others)
    if obligation.kind == ExtraKind.VOLUME:
        return not any(o.kind in {INSTANCE, ExtraKind.CLUSTER} and o.ref == obligation.parent for o in others)
    return True


def ask(session: Session, provider: Provider, obligation: Obligation) -> bool:
    """Ask for one end; true when the request was taken.

    Raises:
        ProviderRefused: it was not.
    """
    request = _request(session, provider, obligation)
    return read(provider, request, give_up=_ASK_SECONDS) is not TerminateAck.NOT_YET


def look(session: Session, provider: Provider, obligations: Sequence[Obligation]) -> Iterator[tuple[Obligation, Seen]]:
    """One complete observation of a provider.

    Raises:
        ProviderRefused: it could not be read; nothing was seen then.
    """
    by_kind: dict[str, list[Obligation]] = {}
    for obligation in obligations:
        by_kind.setdefault(obligation.kind, []).append(obligation)
    yield from _instances(session, provider, by_kind.pop(INSTANCE, []))
    yield from _clusters(session, provider, by_kind.pop(ExtraKind.CLUSTER, []))
    if by_kind:
        listed = read(provider, lambda: _extras(provider))
        for kind, wanted in by_kind.items():
            for obligation in wanted:
                there = _find(listed, kind, obligation.ref) is not None
                yield obligation, Seen(gone=not there, ask_again=there)


def _request(session: Session, provider: Provider, obligation: Obligation) -> Callable[[], TerminateAck]:
    ref = obligation.ref
    if obligation.kind == INSTANCE:
        return _instance_request(session, provider, obligation)
    if obligation.kind == ExtraKind.CLUSTER:
        return lambda: _renter(provider).delete_cluster(ref)
    return lambda: _delete_extra(provider, obligation.kind, ref)


def _instance_request(session: Session, provider: Provider, obligation: Obligation) -> Callable[[], TerminateAck]:
    rental = session.store.rental(obligation.provider, obligation.ref)
    if rental is not None and rental.cluster_id is not None:
        return lambda: TerminateAck.REQUESTED  # its cluster is asked
    if rental is not None and is_lent(provider) and rental.state is not InstanceState.TERMINATED:
        leave_host(session, provider, rental)
    return lambda: provider.terminate(obligation.ref)


def _delete_extra(provider: Provider, kind: str, ref: str) -> TerminateAck:
    extra = _find(_extras(provider), kind, ref)
    if extra is None:
        return TerminateAck.GONE
    assert isinstance(provider, HasExtras)
    return provider.delete_extra(extra.kind, extra.ref)


def _find(listed: Sequence[Extra], kind: str, ref: str) -> Extra | None:
    """By the provider's id, or by our name for what was written down before it had one."""
    return next((e for e in listed if e.kind == kind and ref in {e.ref, e.name}), None)


def _extras(provider: Provider) -> list[Extra]:
    if not isinstance(provider, HasExtras):
        raise Unsupported(f"{provider.name} does not list volumes, scripts and keys")
    return provider.extras()


def _renter(provider: Provider) -> RentsClusters:
    if not isinstance(provider, RentsClusters):
        raise Unsupported(f"{provider.name} does not rent clusters")
    return provider


def _instances(
    session: Session, provider: Provider, obligations: Sequence[Obligation]
) -> Iterator[tuple[Obligation, Seen]]:
    if not obligations:
        return
    inventory = read(provider, provider.inventory)
    bound = session.store.account_of(session.fleet.name, provider.name)
    if bound is not None and inventory.account != bound:
        raise ProtocolError(f"the listing is of account {inventory.account}, not of {bound}")
    listed = {i.instance_id: i for i in inventory.instances}
    for obligation in obligations:
        try:
            instance = listed.get(obligation.ref) or _by_id(provider, obligation.ref)
        except ProviderRefused as refusal:
            yield obligation, Seen(gone=False, refusal=refusal)
            continue
        yield obligation, _seen(session, provider, obligation, instance)


def _seen(session: Session, provider: Provider, obligation: Obligation, instance: Instance | None) -> Seen:
    if instance is None:
        rental = session.store.rental(obligation.provider, obligation.ref)
        early = rental is not None and settling(session, provider, rental)
        return Seen(gone=not early, ask_again=early)
    gone = instance.state is InstanceState.TERMINATED
    again = not gone and instance.state is not InstanceState.TERMINATING
    return Seen(gone, again, instance, instance.ended_at)


def _clusters(
    session: Session, provider: Provider, obligations: Sequence[Obligation]
) -> Iterator[tuple[Obligation, Seen]]:
    if not obligations:
        return
    listed = {c.cluster_id: c for c in read(provider, lambda: _renter(provider).clusters())}
    for obligation in obligations:
        cluster = listed.get(obligation.ref) or _cluster_by_id(provider, obligation.ref)
        if cluster is None:
            early = _is_fresh(session, provider, obligation)
            yield obligation, Seen(gone=not early, ask_again=early)
            continue
        gone = cluster.state is InstanceState.TERMINATED
        yield obligation, Seen(gone, not gone and cluster.state is not InstanceState.TERMINATING)


def _is_fresh(session: Session, provider: Provider, obligation: Obligation) -> bool:
    intents = session.store.intents(session.fleet.name)
    sent = next((i.sent_at for i in intents if i.intent.key == obligation.parent), None)
    return sent is not None and window_left(provider, sent) > 0


def _by_id(provider: Provider, instance_id: str) -> Instance | None:
    try:
        return read(provider, lambda: provider.get(instance_id))
    except InstanceNotFound:
        return None


def _cluster_by_id(provider: Provider, cluster_id: str) -> Cluster | None:
    try:
        return read(provider, lambda: _renter(provider).cluster(cluster_id))
    except InstanceNotFound:
        return None
