"""Which state an instance is in at a time: pure functions of what the market remembers."""

from __future__ import annotations

from datetime import datetime, timedelta

from gpufleet.domain.market import Instance, InstanceState, SshEndpoint
from gpufleet.providers.mock.market import Rental

State = InstanceState
ALIVE = frozenset({State.PROVISIONING, State.BOOTING, State.RUNNING})
"""States in which the node's process should run."""
_MESSAGES = {
    State.PREEMPTED: "taken back by the market",
    State.ERROR: "no machine was free after all",
}


def begins_to_end_at(rental: Rental) -> datetime | None:
    """When the end begins: as called for, or by the deadline given at creation, whichever comes first."""
    times = [t for t in (rental.terminate_at, rental.deadline_at) if t is not None]
    return min(times, default=None)


def is_ending(rental: Rental, now: datetime) -> bool:
    """Has the end begun?"""
    requested = begins_to_end_at(rental)
    return requested is not None and now >= requested


def ends_at(rental: Rental) -> datetime | None:
    """When the meter stops, if an end is in sight."""
    requested = begins_to_end_at(rental)
    return rental.after(rental.terminating_seconds, requested) if requested else None


def state_at(rental: Rental, now: datetime) -> InstanceState:
    """The instance's true state."""
    ended = ends_at(rental)
    if ended and is_ending(rental, now):
        return State.TERMINATED if now >= ended else State.TERMINATING
    if rental.preempted_after_seconds is not None and now >= rental.after(rental.preempted_after_seconds):
        return State.PREEMPTED
    if now < rental.after(rental.provision_seconds):
        return State.PROVISIONING
    if rental.fails_after_seconds is not None and now >= rental.after(rental.fails_after_seconds):
        return State.ERROR
    if rental.stopped:
        return State.STOPPED
    return State.BOOTING if now < rental.after(rental.boot_seconds) else State.RUNNING


def forgotten_at(rental: Rental, forget_seconds: float) -> datetime | None:
    """From when on the market no longer knows the instance."""
    ended = ends_at(rental)
    return ended + timedelta(seconds=forget_seconds) if ended else None


def is_listed(rental: Rental, now: datetime) -> bool:
    """False while a fresh instance is still missing from listings."""
    return now >= rental.after(rental.listed_after_seconds)


def is_known(rental: Rental, now: datetime) -> bool:
    """False while a fresh instance is not even found by its id."""
    return now >= rental.after(rental.known_after_seconds)


def shown_state(rental: Rental, now: datetime) -> InstanceState:
    """As the market tells it; a terminated instance that is not swept yet still shows ``terminating``."""
    state = state_at(rental, now)
    late = state is State.TERMINATED and (not rental.swept or rental.lagging_polls > 0)
    return State.TERMINATING if late else state


def show(rental: Rental, now: datetime, *, provider: str, unknown: bool = False) -> Instance:
    """The instance as the market shows it."""
    state = shown_state(rental, now)
    raw = "rebalancing" if unknown else state.value
    return Instance(
        provider=provider,
        instance_id=rental.instance_id,
        name=rental.key,
        state=State.UNKNOWN if unknown else state,
        raw_state=raw,
        usd_per_hour=rental.usd_per_hour,
        gpu=rental.shape,
        region=rental.region,
        ssh=None if state is State.PROVISIONING else _endpoint(rental),
        private_ip=rental.address,
        host_id=rental.host_id,
        created_at=rental.created_at,
        ended_at=ends_at(rental) if state is State.TERMINATED else None,
        message=_MESSAGES.get(state, ""),
        expires_at=rental.deadline_at,
        cluster_id=rental.cluster_id,
        rank=rental.rank,
    )


def _endpoint(rental: Rental) -> SshEndpoint:
    return SshEndpoint(
        host=rental.address, port=rental.ssh_port, host_key=rental.host_key, workdir=f"{rental.root}/work"
    )
