"""Where a fleet's decode nodes get TileRT's weights from, and the jobs that `gpufleet weights` runs by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpufleet.domain.nodes import NodeName, Role
from gpufleet.engine.acquire import Acquirer
from gpufleet.engine.jobs import NodeJobs, StoreKeys
from gpufleet.engine.machines import Machines
from gpufleet.engine.session import Session
from gpufleet.engine.signals import stop_on_signals
from gpufleet.engine.tasks import TaskGraph, raise_failures
from gpufleet.engine.tools import rental_of
from gpufleet.engine.watch import NodeWatch
from gpufleet.errors import NodeFailed, UsageError
from gpufleet.ledger.records import Rental
from gpufleet.planning.spread import Handover, spread
from gpufleet.playbook.job import CompiledJob


class Doing(StrEnum):
    """What `gpufleet weights` does on nodes that are rented already."""

    FETCH = "fetch"
    CONVERT = "convert"
    VERIFY = "verify"
    COPY = "copy"
    PULL = "pull"
    PUSH = "push"


def store_keys(session: Session) -> StoreKeys:
    """The secrets of the fleet's store.

    Raises:
        InvalidFleet: one cannot be read.
    """
    weights, base = session.fleet.weights, session.path.parent
    given = [key.read(base) if key else "" for key in (weights.access_key, weights.secret_key)]
    return StoreKeys(*given)


def hf_token(session: Session) -> str:
    """The Hugging Face token; empty where none is needed.

    Raises:
        InvalidFleet: it cannot be read.
    """
    token = session.fleet.model.hf_token
    return token.read(session.path.parent) if token else ""


def private_ip(rental: Rental) -> str:
    """Where a node's services listen.

    Raises:
        NodeFailed: the node has no private address.
    """
    if not rental.private_ip:
        raise NodeFailed(f"{rental.node} has no private address", where=str(rental.node))
    return rental.private_ip


def handovers(decode: Sequence[NodeName], serving: Sequence[NodeName]) -> dict[NodeName, Handover]:
    """Who copies the converted weights from whom: from those that serve, else from the first, which makes them."""
    holders = list(serving) or list(decode[:1])
    return spread(holders, [node for node in decode if node not in holders])


def work_on_weights(session: Session, doing: Doing, nodes: Sequence[NodeName]) -> None:
    """Run one kind of job on nodes that are rented, all at once; the fleet's lock is held by the caller.

    Raises:
        UsageError: a node is not rented, or has no use for this.
        NodeFailed: the job failed on a node; says on which ones, and why.
    """
    rentals = {node: rental_of(session, node) for node in nodes}
    for node in nodes:
        if doing is not Doing.FETCH and session.fleet.role_of(node.pool) is not Role.DECODE:
            raise UsageError(f"{node} is no decode node, and only those have converted weights")
    with Machines(session) as machines, stop_on_signals(session.stop):
        _Work(session, Acquirer(session, machines, {}), rentals).run(doing)


@dataclass(frozen=True)
class _Work:
    session: Session
    acquirer: Acquirer
    rentals: Mapping[NodeName, Rental]

    def run(self, doing: Doing) -> None:
        graph = TaskGraph()
        ways = self._ways() if doing is Doing.COPY else {}
        for node in self.rentals:
            if doing is not Doing.COPY:
                graph.add(str(node), lambda node=node: self._do(node, doing))  # type: ignore[misc]
            elif way := ways.get(node):
                before = [str(way.before)] if way.before else []
                graph.add(str(node), lambda way=way: self._copy(way), [str(way.source)], once_over=before)  # type: ignore[misc]
        raise_failures(graph.run(self.session.stop))

    def _ways(self) -> dict[NodeName, Handover]:
        """Copies start at decode nodes that were not named: those have the weights, as far as anyone knows."""
        decode = [node for node in self.session.fleet.nodes_of(Role.DECODE) if self.session.rental_of(node)]
        holders = [node for node in decode if node not in self.rentals] or decode[:1]
        return spread(holders, [node for node in self.rentals if node not in holders])

    def _do(self, node: NodeName, doing: Doing) -> None:
        rental = self.rentals[node]
        self._run(rental, self._job(self.acquirer.jobs(rental), doing), doing)

    def _job(self, jobs: NodeJobs, doing: Doing) -> CompiledJob:
        match doing:
            case Doing.FETCH:
                return jobs.fetch(hf_token(self.session))
            case Doing.CONVERT:
                return jobs.convert()
            case Doing.PULL:
                return jobs.pull(store_keys(self.session))
            case Doing.PUSH:
                return jobs.push(store_keys(self.session))
            case _:
                return jobs.verify()

    def _copy(self, way: Handover) -> None:
        source = rental_of(self.session, way.source)
        self._run(source, self.acquirer.jobs(source).share(private_ip(source)), Doing.COPY, ended=False)
        rental = self.rentals[way.node]
        self._run(rental, self.acquirer.jobs(rental).copy(private_ip(source)), Doing.COPY)

    def _run(self, rental: Rental, job: CompiledJob, doing: Doing, *, ended: bool = True) -> None:
        watch = NodeWatch(rental.node, self.session.sink)
        try:
            with watch.alongside(doing, job.name):
                self.acquirer.run(rental, job, watch)
        except NodeFailed as error:
            watch.failed(error.message)
            raise
        if ended:
            watch.done()
