"""Connections to the fleet's nodes: one per node and run, opened when first needed, kept open."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import TypeGuard

from gpufleet.domain.market import SshEndpoint
from gpufleet.domain.nodes import NodeName
from gpufleet.engine.session import Session
from gpufleet.errors import NodeFailed
from gpufleet.ledger.records import Rental
from gpufleet.remote.errors import HostKeyChanged
from gpufleet.remote.keys import KeyPair, ensure_keypair
from gpufleet.remote.machine import Machine
from gpufleet.remote.ssh import wait_for_ssh

BOOT_SLACK = 4.0
"""A node may take this many times the offer's expected boot time before it counts as dead."""
LEAST_BOOT_SECONDS = 600.0


class Machines:
    """Hands out connections; safe to use from many threads."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._open: dict[NodeName, Machine] = {}
        self._lock = threading.Lock()
        self.keys: KeyPair = ensure_keypair(session.paths.keys)

    def get(self, rental: Rental, *, within: float = 60.0) -> Machine:
        """The node's connection; opened, and tried again for ``within`` seconds, when there is none yet.

        The first host key seen is pinned to the rental.

        Raises:
            ConnectionLost, LoginRefused: not reachable in time.
            HostKeyChanged: the host shows another key than the rental's pinned one.
        """
        with self._lock:
            machine = self._open.get(rental.node)
        if machine is not None:
            return machine
        return self._connect(rental, within)

    def again(self, rental: Rental) -> Machine:
        """A new connection in place of a broken one."""
        self.drop(rental.node)
        return self.get(rental, within=1.0)

    def drop(self, node: NodeName) -> None:
        """Forget a node's connection."""
        with self._lock:
            machine = self._open.pop(node, None)
        if machine is not None:
            machine.close()

    def close(self) -> None:
        """Close all of them."""
        for node in list(self._open):
            self.drop(node)

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _connect(self, rental: Rental, within: float) -> Machine:
        endpoint = endpoint_of(rental)
        try:
            machine = wait_for_ssh(
                endpoint,
                name=str(rental.node),
                private_key_file=private_key_of(endpoint, self.keys),
                pinned_host_key=endpoint.host_key,
                deadline_seconds=within,
                stop=self._session.stop,
            )
        except HostKeyChanged as changed:
            path = self._session.path
            changed.hint = (
                f"if the host was reinstalled: gpufleet down {path}, correct host_key where the file gives one, "
                f"gpufleet up {path}; otherwise someone may be in between"
            )
            raise
        if endpoint.host_key is None:
            self._session.store.pin_host_key(rental.provider, rental.instance_id, machine.host_key)
        if endpoint.jump is not None and endpoint.jump.host_key is None and machine.jump_host_key:
            self._session.store.pin_jump_key(rental.provider, rental.instance_id, machine.jump_host_key)
        with self._lock:
            kept = self._open.setdefault(rental.node, machine)
        if kept is not machine:
            machine.close()
        return kept


def was_reached(rental: Rental | None) -> TypeGuard[Rental]:
    """Whether somebody has logged in there for this rental: something of ours may run."""
    return rental is not None and rental.ssh is not None and rental.ssh.host_key is not None


def endpoint_of(rental: Rental) -> SshEndpoint:
    """Where a rental is reached.

    Raises:
        NodeFailed: the provider has not said yet.
    """
    if rental.ssh is None:
        raise NodeFailed(f"{rental.provider} gives no SSH address for {rental.node}", where=str(rental.node))
    return replace(rental.ssh)


def private_key_of(endpoint: SshEndpoint, keys: KeyPair) -> Path:
    """The key that logs in there: the inventory's own, else the fleet's."""
    return Path(endpoint.key_file) if endpoint.key_file else keys.private_file
