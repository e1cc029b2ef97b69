"""Reads from a provider, shared by all threads of a run: one listing serves every node that waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_delay

from gpufleet.domain.market import Instance, Inventory
from gpufleet.errors import ProviderRefused
from gpufleet.providers.base import Provider
from gpufleet.providers.errors import InstanceNotFound, NotSent, ProtocolError, RateLimited, Transient

T = TypeVar("T")
_READ_AGAIN = (Transient, RateLimited, NotSent, ProtocolError)
GIVE_UP_SECONDS = 60.0
"""A provider that answers nothing useful for so long counts as unreachable."""
_MAX_WAIT = 10.0


def _pause(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, RateLimited):
        return min(error.retry_after, _MAX_WAIT)
    return min(0.2 * 2.0 ** (state.attempt_number - 1), _MAX_WAIT)


def read(provider: Provider, call: Callable[[], T], *, give_up: float = GIVE_UP_SECONDS) -> T:
    """Make an idempotent provider call, again after transient refusals, for at most ``give_up`` seconds.

    Retried: `Transient`, `RateLimited` (after its ``retry_after``), `NotSent`, `ProtocolError`. Never a create.
    """
    policy = Retrying(
        retry=retry_if_exception_type(_READ_AGAIN), wait=_pause, stop=stop_after_delay(give_up), reraise=True
    )
    try:
        return policy(call)
    except ProviderRefused as refusal:
        refusal.where = refusal.where or f"provider {provider.name}"
        raise


class Listing:
    """The newest complete inventory of one provider, read at most once per ``poll_seconds``."""

    def __init__(self, provider: Provider, *, give_up: float = GIVE_UP_SECONDS) -> None:
        self._provider = provider
        self._give_up = give_up
        self._lock = threading.Lock()
        self._inventory: Inventory | None = None
        self._by_id: tuple[Inventory, dict[str, Instance]] | None = None
        self._read_at = 0.0

    def inventory(self, *, fresh: bool = False) -> Inventory:
        """A listing no older than the provider's polling interval; ``fresh`` forces a new one."""
        asked_at = time.monotonic()
        with self._lock:
            age = asked_at - self._read_at
            if self._inventory is None or age >= self._provider.caps.poll_seconds or (fresh and age >= 0):
                self._inventory = read(self._provider, self._provider.inventory, give_up=self._give_up)
                self._read_at = time.monotonic()
            return self._inventory

    def instance(self, instance_id: str) -> Instance | None:
        """One instance; None only when the complete listing lacks it *and* a read by id says it does not exist."""
        inventory = self.inventory()
        if self._by_id is None or self._by_id[0] is not inventory:
            self._by_id = inventory, {i.instance_id: i for i in inventory.instances}
        if (found := self._by_id[1].get(instance_id)) is not None:
            return found
        try:
            return read(self._provider, lambda: self._provider.get(instance_id), give_up=self._give_up)
        except InstanceNotFound:
            return None
