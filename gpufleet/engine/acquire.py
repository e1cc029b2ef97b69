"""From "there should be a node" to a rented, reachable node that passed its checks.

A rental that does not come up or fails its checks is released, and the next offer is tried: a bad node must not be paid
for, and must not hold up the fleet.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from gpufleet.catalog.sizing import needs
from gpufleet.domain.jobs import JobEvent, JobEventKind
from gpufleet.domain.market import WORKDIR, InstanceState, Offer
from gpufleet.domain.money import usd_per_hour
from gpufleet.domain.nodes import NodeName
from gpufleet.domain.status import Serving
from gpufleet.engine.clusters import WantedCluster, rent_cluster
from gpufleet.engine.hosts import LOGIN_SECONDS, take_host
from gpufleet.engine.jobs import NodeJobs
from gpufleet.engine.lent import is_lent
from gpufleet.engine.listing import Listing
from gpufleet.engine.machines import BOOT_SLACK, LEAST_BOOT_SECONDS, Machines
from gpufleet.engine.refusals import ASK_ELSEWHERE, REFUSED_HERE
from gpufleet.engine.release import ask_end, decide_end
from gpufleet.engine.rent import Wanted, rent
from gpufleet.engine.session import Session, now
from gpufleet.engine.settling import settling
from gpufleet.engine.watch import NodeWatch
from gpufleet.errors import Interrupted, NodeFailed, ProviderRefused
from gpufleet.ledger.records import Rental
from gpufleet.playbook.job import CompiledJob
from gpufleet.providers.base import Provider
from gpufleet.providers.errors import CapacityError
from gpufleet.remote.errors import ConnectionLost, HostKeyChanged
from gpufleet.remote.jobs import run_job
from gpufleet.remote.machine import Machine

JOB_SECONDS = 6 * 3600.0
"""The longest any job may take; a conversion alone was seen to take 136 minutes."""
UNREACHABLE_SECONDS = 900.0
"""How long a running node may not answer before it counts as failed; it costs money all the while."""
_TRIES = 3
_DEAD = {InstanceState.ERROR, InstanceState.PREEMPTED, InstanceState.TERMINATED, InstanceState.STOPPED}


@dataclass(frozen=True)
class Acquirer:
    """Gets nodes for one run."""

    session: Session
    machines: Machines
    listings: dict[str, Listing]
    _out: dict[str, ProviderRefused] = field(default_factory=dict)
    """Providers that rent this account nothing, and why."""
    _facts: dict[str, dict[str, str]] = field(default_factory=dict)
    _facts_lock: threading.Lock = field(default_factory=threading.Lock)

    def acquire(self, node: NodeName, held: Rental | None, offers: Sequence[Offer], watch: NodeWatch) -> Rental:
        """A checked node for ``node``: the one already held, or a new rental.

        Raises:
            NodeFailed: three rentals in a row did not come up, or one that was serving before does not any more.
            ProviderRefused: nothing could be rented.
        """
        remaining = list(offers)
        rental = held
        last: NodeFailed | None = None
        for attempt in range(_TRIES):
            fresh = rental is None
            rental = rental or self._rent_after(last, node, remaining, watch)
            try:
                return self._come_up(rental, watch)
            except (HostKeyChanged, Interrupted):
                raise
            except NodeFailed as bad:
                if not fresh and held is not None and held.serving in {Serving.READY, Serving.SICK}:
                    raise
                last_try = attempt == _TRIES - 1 or rental.cluster_id is not None
                self._give_up(rental, bad, watch, last_try=last_try)
                if last_try:
                    raise
                remaining = self._without(remaining, rental)
                rental, last = None, bad
        raise AssertionError("unreachable")

    def rent_cluster(self, nodes: Sequence[NodeName], offer: Offer) -> dict[NodeName, Rental]:
        """Rent nodes as one cluster. See `gpufleet.engine.clusters.rent_cluster`."""
        fleet = self.session.fleet
        ttl = fleet.budget.ttl
        pools = [fleet.pools[node.pool] for node in nodes]
        limits = [offer.usd_per_hour if p.max_usd_per_hour is None else p.max_usd_per_hour for p in pools]
        disks = [
            p.disk_gb or needs(fleet.model.id, fleet.role_of(n.pool)).disk_gb for n, p in zip(nodes, pools, strict=True)
        ]
        wanted = WantedCluster(
            nodes=tuple(nodes),
            offer=offer,
            max_usd_per_hour=min(limits),
            disk_gb=max(disks),
            deadline_at=now() + ttl if ttl else None,
            ssh_public_key=self.machines.keys.public_text,
        )
        provider = self.session.provider_named(offer.provider)
        return rent_cluster(self.session, provider, self.listings[offer.provider], wanted)

    def run(self, rental: Rental, job: CompiledJob, watch: NodeWatch) -> None:
        """Run one job on a node to its end, over as many connections as it takes.

        Raises:
            NodeFailed: the job failed, or the node is gone, or out of reach for too long.
        """
        if self.session.stop.is_set():
            raise Interrupted("interrupted", where=str(rental.node))
        run_job(
            self.machines.get(rental),
            job,
            on_event=self._listener(rental, watch),
            stop=self.session.stop,
            reconnect=_Reconnect(self, rental),
            deadline_seconds=JOB_SECONDS,
        )

    def _rent_after(self, bad: NodeFailed | None, node: NodeName, offers: Sequence[Offer], watch: NodeWatch) -> Rental:
        """Rent; where nothing else can be had after a bad node, that node is what went wrong."""
        try:
            return self._rent(node, offers, watch)
        except CapacityError as refusal:
            if bad is None:
                raise
            raise NodeFailed(
                f"{bad.message}; nothing else can be had: {refusal.message}", where=bad.where, hint=bad.hint
            ) from refusal

    def _rent(self, node: NodeName, offers: Sequence[Offer], watch: NodeWatch) -> Rental:
        fleet = self.session.fleet
        pool = fleet.pools[node.pool]
        watch.phase("rent", message=f"{offers[0].gpu} {usd_per_hour(offers[0].usd_per_hour)}" if offers else "")
        ttl = fleet.budget.ttl
        wanted = Wanted(
            node=node,
            offers=offers,
            max_usd_per_hour=pool.max_usd_per_hour,
            disk_gb=pool.disk_gb or needs(fleet.model.id, fleet.role_of(node.pool)).disk_gb,
            deadline_at=now() + ttl if ttl else None,
            ssh_public_key=self.machines.keys.public_text,
        )
        return self._rent_anywhere(wanted)

    def _rent_anywhere(self, wanted: Wanted) -> Rental:
        """At the first provider that has one of its offers; what one refuses for good, the next is asked for."""
        names = list(dict.fromkeys(offer.provider for offer in wanted.offers))
        for name in names[:-1]:
            with suppress(*ASK_ELSEWHERE):
                return self._rent_at(name, wanted)
        return self._rent_at(names[-1] if names else self.session.fleet.provider_of(wanted.node.pool).use, wanted)

    def _rent_at(self, name: str, wanted: Wanted) -> Rental:
        """Rent at one provider; one that has refused this account is not asked again in this run."""
        if known := self._out.get(name):
            raise type(known)(known.message, where=known.where, hint=known.hint)
        here = replace(wanted, offers=[o for o in wanted.offers if o.provider == name])
        try:
            return rent(self.session, self.session.provider_named(name), self.listings[name], here)
        except REFUSED_HERE as refusal:
            self._out[name] = refusal
            raise

    def _come_up(self, rental: Rental, watch: NodeWatch) -> Rental:
        watch.phase("boot")
        rental = self._wait_running(rental)
        watch.phase("connect")
        machine = self.machines.get(rental, within=self._boot_limit(rental))
        take_host(self._provider_of(rental), rental, machine)
        watch.phase("check")
        self.run(rental, self.jobs(rental).check(), watch)
        refreshed = self.session.store.rental(rental.provider, rental.instance_id) or rental
        if refreshed.private_ip is None:
            raise NodeFailed(
                f"{rental.node} has no private address, and services must not listen on a public one",
                where=str(rental.node),
            )
        return refreshed

    def jobs(self, rental: Rental) -> NodeJobs:
        """The jobs of a rented node."""
        workdir = rental.ssh.workdir if rental.ssh else WORKDIR
        return NodeJobs(
            self.session.fleet,
            rental.node,
            workdir,
            rdma=has_rdma(rental, self.session.fleet.network.rdma),
            runtime=rental.runtime,
        )

    def _wait_running(self, rental: Rental) -> Rental:
        provider = self._provider_of(rental)
        limit = self._boot_limit(rental)
        deadline = time.monotonic() + limit
        while True:
            rental, state = self.check_alive(rental)
            if state is InstanceState.RUNNING and rental.ssh is not None:
                return rental
            if time.monotonic() > deadline:
                raise NodeFailed(
                    f"{rental.node} is still {state} at {provider.name} after {limit:.0f} s", where=str(rental.node)
                )
            if self.session.stop.wait(provider.caps.poll_seconds):
                raise Interrupted("interrupted while a node boots", where=str(rental.node))

    def check_alive(self, rental: Rental) -> tuple[Rental, InstanceState]:
        """Take in how the provider sees a node now.

        Raises:
            NodeFailed: it is no more.
        """
        instance = self.listings[rental.provider].instance(rental.instance_id)
        state = instance.state if instance else self._unseen(rental)
        if instance is not None:
            rental = self.session.store.update_rental(instance)
        if state in _DEAD:
            told = f": {instance.message}" if instance and instance.message else ""
            raise NodeFailed(f"{rental.node} is {state} at {rental.provider}{told}", where=str(rental.node))
        return rental, state

    def _unseen(self, rental: Rental) -> InstanceState:
        """What the absence of a rental means: nothing yet while it is fresh."""
        fresh = settling(self.session, self._provider_of(rental), rental)
        return InstanceState.PROVISIONING if fresh else InstanceState.TERMINATED

    def _boot_limit(self, rental: Rental) -> float:
        """Real seconds that a boot may take."""
        if is_lent(self._provider_of(rental)):
            return LOGIN_SECONDS
        offer = self.session.terms.get(rental.key)
        expected = offer.boot_seconds if offer else 300.0
        scale = self._provider_of(rental).caps.time_scale
        return max(expected * BOOT_SLACK, LEAST_BOOT_SECONDS) / scale + 10.0

    def _give_up(self, rental: Rental, bad: NodeFailed, watch: NodeWatch, *, last_try: bool) -> None:
        self.machines.drop(rental.node)
        self.session.store.log_event(
            self.session.fleet.name,
            rental.node,
            "bad-node",
            {"provider": rental.provider, "host": rental.host_id, "offer": rental.offer_id, "why": bad.message},
        )
        watch.failed(f"{bad.message}; released" + ("" if last_try else ", trying the next offer"))
        decide_end(self.session, rental, "bad node")
        ask_end(self.session, [rental])

    def _without(self, offers: Sequence[Offer], bad: Rental) -> list[Offer]:
        """The offer that gave a bad node goes last; where an offer is one listed host, it is not tried again."""
        others = [offer for offer in offers if offer.offer_id != bad.offer_id]
        same = [offer for offer in offers if offer.offer_id == bad.offer_id]
        return others if is_lent(self._provider_of(bad)) else [*others, *same]

    def _listener(self, rental: Rental, watch: NodeWatch) -> Callable[[JobEvent], None]:
        def listen(event: JobEvent) -> None:
            if event.data:
                self._learn(rental, event)
            watch.event(event)

        return listen

    def _learn(self, rental: Rental, event: JobEvent) -> None:
        """Keep what a node says of itself, and what its jobs resolved: image digests, the model's commit."""
        with self._facts_lock:
            known = self._facts.setdefault(rental.instance_id, dict(rental.fingerprint))
            if event.kind is JobEventKind.FINGERPRINT:
                known.clear()
            known |= event.data
            self.session.store.set_fingerprint(rental.provider, rental.instance_id, known)

    def _provider_of(self, rental: Rental) -> Provider:
        return self.session.provider_named(rental.provider)


class _Reconnect:
    """A new connection to a node whose old one broke, as long as there is hope."""

    def __init__(self, acquirer: Acquirer, rental: Rental) -> None:
        self._acquirer = acquirer
        self._rental = rental
        self._lost_at: float | None = None

    def __call__(self) -> Machine:
        """Try once.

        Raises:
            ConnectionLost: not now; the provider says that the node still runs.
            NodeFailed: the node is no more, or out of reach for `UNREACHABLE_SECONDS`.
        """
        self._lost_at = self._lost_at or time.monotonic()
        try:
            machine = self._acquirer.machines.again(self._rental)
        except ConnectionLost as lost:
            self._acquirer.check_alive(self._rental)
            if time.monotonic() - self._lost_at > UNREACHABLE_SECONDS:
                raise NodeFailed(
                    f"{self._rental.node} has been out of reach for {UNREACHABLE_SECONDS / 60:.0f} min: {lost.message}",
                    where=str(self._rental.node),
                ) from lost
            raise
        self._lost_at = None
        return machine


def has_rdma(rental: Rental, wanted: str) -> bool:
    """Whether containers there are given the RDMA devices: the node has active ports and the fleet wants them."""
    return wanted != "off" and rental.fingerprint.get("rdma_ports", "0") not in {"", "0"}
