"""From a plan to serving nodes: which job waits for which, over all nodes at once.

Long work starts at the first SSH session and overlaps everything else: images and weights load on every node while the
first decode node converts. Nodes wait for each other only where one needs the other's address or its readiness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gpufleet.domain.market import Offer
from gpufleet.domain.money import usd_per_hour
from gpufleet.domain.nodes import NodeName, Role
from gpufleet.domain.status import Serving
from gpufleet.engine import cells
from gpufleet.engine.acquire import Acquirer
from gpufleet.engine.jobs import NodeJobs
from gpufleet.engine.session import Session
from gpufleet.engine.tasks import TaskGraph
from gpufleet.engine.watch import NodeWatch
from gpufleet.engine.weights import handovers, hf_token, private_ip, store_keys
from gpufleet.errors import GpufleetError, Interrupted
from gpufleet.ledger.records import Rental
from gpufleet.playbook.job import CompiledJob
from gpufleet.serving.settings import node_settings
from gpufleet.serving.topology import Cell, Topology, build_topology

VLLM_ROUTER = "vllm-router"


@dataclass(frozen=True)
class Target:
    """One node that is to serve."""

    node: NodeName
    offers: Sequence[Offer]
    """To rent from, when there is no rental yet."""
    held: Rental | None
    work: bool
    """False: it serves already and is left alone."""


def cluster_task(target: Target) -> str:
    """The task that rents the cluster of a node; of none, the name of no task."""
    return f"cluster {target.offers[0].offer_id}" if target.offers else "no cluster"


@dataclass
class BringUp:
    """The task graph of one ``up``."""

    session: Session
    acquirer: Acquirer
    targets: Mapping[NodeName, Target]
    watches: Mapping[NodeName, NodeWatch]
    rentals: dict[NodeName, Rental] = field(default_factory=dict)
    """Checked nodes so far."""
    graph: TaskGraph = field(default_factory=TaskGraph)
    in_clusters: dict[NodeName, Rental] = field(default_factory=dict)
    """Members of clusters that this run has rented."""
    shrinks: bool = False
    """Prefill or native nodes that serve are to end: the native pool's router must not send them anything more."""
    lost: set[NodeName] = field(default_factory=set)
    """Prefill nodes that did not come up, and whose decode nodes others feed."""
    _named: set[str] = field(default_factory=set)
    _done: set[str] = field(default_factory=set)

    def run(self) -> dict[str, BaseException]:
        """Do it; returns the failures by task.

        Raises:
            Interrupted: jobs that run on nodes go on there; the next run joins them.
        """
        self.rentals |= {t.node: t.held for t in self.targets.values() if not t.work and t.held}
        self._add_clusters()
        for target in self.targets.values():
            if target.work:
                self._add_node(target)
        for cell in self.planned_cells():
            cells.add_cell(self, cell)
        self._add_native_router()
        return self.graph.run(self.session.stop)

    def topology(self) -> Topology:
        """Addresses of every node that is checked by now."""
        known = {node: rental.private_ip for node, rental in self.rentals.items()}
        return build_topology(self.session.fleet, {node: ip for node, ip in known.items() if ip}, lost=self.lost)

    def jobs(self, node: NodeName) -> NodeJobs:
        return self.acquirer.jobs(self.rentals[node])

    def served(self, *names: str) -> bool:
        """Whether these tasks ran to their end or were not needed."""
        return self._named.isdisjoint(names) or self._done.issuperset(self._named.intersection(names))

    # One node ------------------------------------------------------------------------------------------------------

    def _add_node(self, target: Target) -> None:
        node = target.node
        role = self.session.fleet.role_of(node.pool)
        self.task(f"acquire {node}", node, lambda: self._acquire(target), [cluster_task(target)])
        self._job(f"image {node}", node, "image", lambda: self.jobs(node).image(), [f"acquire {node}"])
        if role is Role.DECODE:
            weights = self._add_decode_weights(node)
        else:
            weights = self._job(f"weights {node}", node, "weights", lambda: self._fetch(node), [f"acquire {node}"])
        needs = [f"image {node}", weights, *cells.add_leave(self, target)]
        serve = self._job(f"serve {node}", node, "serve", lambda: self.jobs(node).serve(self.topology()), needs)
        cells.add_gate(self, target, after=serve)

    def _acquire(self, target: Target) -> None:
        watch = self.watches[target.node]
        held = self.in_clusters.get(target.node, target.held)
        self.rentals[target.node] = self.acquirer.acquire(target.node, held, target.offers, watch)

    def _add_clusters(self) -> None:
        """Nodes that are rented as a whole: one task each, before any of them is acquired."""
        groups: dict[str, list[Target]] = {}
        for target in self.targets.values():
            if target.work and target.held is None and target.offers and target.offers[0].cluster:
                groups.setdefault(target.offers[0].offer_id, []).append(target)
        for members in groups.values():
            self.task(cluster_task(members[0]), members[0].node, lambda members=members: self._rent_cluster(members))  # type: ignore[misc]

    def _rent_cluster(self, members: Sequence[Target]) -> None:
        for member in members:
            self.watches[member.node].phase("rent", message=f"as one of {len(members)} of a cluster")
        self.in_clusters |= self.acquirer.rent_cluster([m.node for m in members], members[0].offers[0])

    def _fetch(self, node: NodeName) -> CompiledJob:
        return self.jobs(node).fetch(hf_token(self.session))

    def _add_decode_weights(self, node: NodeName) -> str:
        """The first decode node pulls them from the store, or converts; the others copy them, as a tree."""
        decode = [t for t in self.targets.values() if self.session.fleet.role_of(t.node.pool) is Role.DECODE]
        ways = handovers([t.node for t in decode], [t.node for t in decode if not t.work])
        if node not in ways:
            return self._add_conversion(node)
        way = ways[node]
        self._add_share(way.source)
        before = [f"weights {way.before}"] if way.before else []
        needs = [f"acquire {node}", f"share {way.source}"]
        return self._job(
            f"weights {node}",
            node,
            "weights",
            lambda: self.jobs(node).copy(self._ip(way.source)),
            needs,
            once_over=before,
        )

    def _add_conversion(self, node: NodeName) -> str:
        needs = [f"acquire {node}"]
        if self.session.fleet.weights.store:
            pull = lambda: self.jobs(node).pull(store_keys(self.session))  # noqa: E731
            needs = [self._job(f"pull {node}", node, "weights", pull, needs)]
        self._job(f"weights {node}", node, "weights", lambda: self._fetch(node), needs)
        ready = [f"weights {node}", f"image {node}"]
        return self._job(f"convert {node}", node, "convert", lambda: self.jobs(node).convert(), ready)

    def _add_share(self, source: NodeName) -> None:
        name = f"share {source}"
        if name not in self.graph.tasks:
            has_them = [f"convert {source}", f"weights {source}"]
            self._job(name, source, "share", lambda: self.jobs(source).share(self._ip(source)), has_them)

    def store_weights(self) -> None:
        """Put what this run converted into the store, for later nodes and fleets. The fleet serves meanwhile."""
        made = [node for node in self.rentals if f"convert {node}" in self._done]
        if not self.session.fleet.weights.store or not made:
            return
        node = made[0]
        job = self.jobs(node).push(store_keys(self.session))
        with self.watches[node].alongside("share", job.name):
            self.acquirer.run(self.rentals[node], job, self.watches[node])
        self.watches[node].done()

    # Between nodes -------------------------------------------------------------------------------------------------

    def planned_cells(self) -> tuple[Cell, ...]:
        """Cells of this run's nodes, without addresses."""
        return build_topology(self.session.fleet, dict.fromkeys(self.targets, ""), lost=self.lost).cells

    def _add_native_router(self) -> None:
        natives = self.of(Role.NATIVE)
        members = [*natives, *self.of(Role.PREFILL)]
        if natives and (self.shrinks or any(self.targets[n].work for n in members)):
            needs = [f"serve {n}" for n in members]
            host = natives[0]
            self._job(VLLM_ROUTER, host, "cell", lambda: self.jobs(host).vllm_router(self.topology()), needs)

    def retire_native_routers(self) -> None:
        """Once callers are sent to this run's router of the native pool: end the ones before it, without a cut."""
        topology = self.topology()
        host = topology.native_router
        if host is not None and VLLM_ROUTER in self._done:
            job = self.jobs(host).retire_vllm_routers(topology)
            self.acquirer.run(self.rentals[host], job, self.watches[host])

    def of(self, role: Role) -> list[NodeName]:
        """This run's nodes of a role."""
        return [n for n in self.session.fleet.nodes_of(role) if n in self.targets]

    def _ip(self, node: NodeName) -> str:
        return private_ip(self.rentals[node])

    # Tasks ---------------------------------------------------------------------------------------------------------

    def _job(
        self,
        name: str,
        node: NodeName,
        phase: str,
        build: Callable[[], CompiledJob],
        after: Sequence[str],
        *,
        once_over: Sequence[str] = (),
    ) -> str:
        def work() -> None:
            job, watch = build(), self.watches[node]
            with watch.alongside(phase, job.name):
                self.acquirer.run(self.rentals[node], job, watch)
            if phase == "serve":
                self.note_settings(node)

        return self.task(name, node, work, after, once_over)

    def task(
        self,
        name: str,
        node: NodeName,
        work: Callable[[], None],
        after: Sequence[str] = (),
        once_over: Sequence[str] = (),
    ) -> str:
        """Add a task of a node to the graph; a failure of it is told with what the node costs while it stays."""
        self._named.add(name)

        def guarded() -> None:
            try:
                work()
            except Interrupted:
                raise
            except GpufleetError as error:
                self.watches[node].failed(error.message)
                raise self._with_cost(error, node) from error
            self._done.add(name)

        return self.graph.add(name, guarded, after, once_over=once_over)

    def note_settings(self, node: NodeName, cell: Mapping[str, str] | None = None) -> None:
        """What the node was brought up with, for the next plan to compare; ``cell`` is who feeds it in truth."""
        rental = self.rentals[node]
        settings = {**node_settings(self.session.fleet, node), **(cell or {})}
        self.session.store.set_serving(rental.provider, rental.instance_id, Serving.STARTING, settings=settings)

    def _with_cost(self, error: GpufleetError, node: NodeName) -> GpufleetError:
        """Say what the failed node costs while it stays, and which commands come next."""
        rental = self.rentals.get(node)
        if rental is None or error.hint:
            return error
        path = self.session.path
        error.where = error.where or str(node)
        error.hint = (
            f"{node} costs {usd_per_hour(rental.usd_per_hour)} while it stays; "
            f"look: gpufleet logs {path} {node}; go on: gpufleet up {path}; remove: gpufleet down {path}"
        )
        return error
