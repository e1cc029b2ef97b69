"""Starting, reloading and stopping HAProxy through its playbooks, here or on the node that it runs on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gpufleet.domain.jobs import JobEvent, JobEventKind
from gpufleet.domain.nodes import NodeName
from gpufleet.domain.progress import Progress
from gpufleet.engine.acquire import JOB_SECONDS
from gpufleet.engine.front import LOCAL, Front, local_workdir
from gpufleet.engine.machines import Machines, was_reached
from gpufleet.engine.paths import NodePaths
from gpufleet.engine.record import recorded_router
from gpufleet.engine.session import Session
from gpufleet.engine.watch import NodeWatch
from gpufleet.errors import NodeFailed
from gpufleet.ledger.records import Rental
from gpufleet.playbook.job import CompiledJob
from gpufleet.remote.jobs import run_job
from gpufleet.remote.local import LocalMachine
from gpufleet.remote.machine import Machine
from gpufleet.routing.runtime import Ask, gone, shell_command
from gpufleet.serving.topology import Cell, Topology

_ASK_SECONDS = 5.0
"""A node that takes longer to reach tells nothing about its cells; `plan` must not hang on it."""


def open_front(
    session: Session, machines: Machines, topology: Topology, cells: Sequence[Cell], *, native: bool
) -> bool:
    """Bring HAProxy to what serves now; True when it was started or reloaded, which cuts no stream.

    Raises:
        JobFailed: haproxy is missing, the port is in use, or the configuration is refused; says which.
    """
    front = Front(session)
    machine = _place(session, machines, front)
    config = front.config(topology, cells, native=native, directory=_directory(session, front, machine))
    events = _run(session, machine, front.open_job(config, machine.workdir))
    _close_former(session, machines, front)
    return any(e.step == "run" and e.kind is JobEventKind.STEP_DONE for e in events)


def close_front(session: Session, machines: Machines) -> None:
    """Stop HAProxy once its streams have ended: here, and on the node that it runs on.

    A node that cannot be reached is left as it is: it is to end, and the router with it.

    Raises:
        JobFailed: the one on this machine may still run.
    """
    _close_local(session)
    front = Front(session)
    if not front.on_this_machine:
        _close_on(session, machines, front.rental)


@contextmanager
def asked_front(session: Session) -> Iterator[Front]:
    """The front door with its view of the cells, over SSH where it runs on a node; unknown when that fails."""
    front = Front(session)
    rental = front.rental
    if front.on_this_machine or not was_reached(rental):
        yield front
        return
    with Machines(session) as machines:
        yield Front(session, ask=_asker(machines, rental))


def _asker(machines: Machines, rental: Rental) -> Ask:
    def ask(command: str) -> str:
        try:
            machine = machines.get(rental, within=_ASK_SECONDS)
            done = machine.run(shell_command(NodePaths(machine.workdir).router, command))
        except NodeFailed as error:
            raise gone(str(rental.node), error.message) from error
        if done.exit_code != 0:
            raise gone(str(rental.node), (done.stderr.strip().splitlines() or ["no answer"])[-1])
        return done.stdout

    return ask


def _close_former(session: Session, machines: Machines, front: Front) -> None:
    """The file may have named another place before, where a router with the same keys still listens."""
    former = recorded_router(session.path)
    if not front.on_this_machine:
        _close_local(session)
    if former and former not in {LOCAL, str(front.node)}:
        _close_on(session, machines, session.rental_of(NodeName.parse(former)))


def _close_on(session: Session, machines: Machines, rental: Rental | None) -> None:
    if not was_reached(rental):
        return
    try:
        machine = machines.get(rental, within=_ASK_SECONDS)
        _run(session, machine, Front(session).close_job(NodePaths(machine.workdir).router, machine.workdir))
    except NodeFailed as error:
        session.sink(Progress(None, "router", message=f"not closed, ends with its node: {error.message}"))


def _close_local(session: Session) -> None:
    if session.paths.router.exists():
        machine = LocalMachine(local_workdir(session))
        _run(session, machine, Front(session).close_job(str(session.paths.router), machine.workdir))


def _place(session: Session, machines: Machines, front: Front) -> Machine:
    if front.on_this_machine:
        return LocalMachine(local_workdir(session))
    if front.rental is None:
        raise NodeFailed(f"the router's node {front.node} is not rented", hint=f"gpufleet up {session.path}")
    return machines.get(front.rental)


def _directory(session: Session, front: Front, machine: Machine) -> str:
    return str(session.paths.router) if front.on_this_machine else NodePaths(machine.workdir).router


def _run(session: Session, machine: Machine, job: CompiledJob) -> tuple[JobEvent, ...]:
    watch = NodeWatch(None, session.sink)
    watch.phase("router")
    return run_job(machine, job, on_event=watch.event, stop=session.stop, deadline_seconds=JOB_SECONDS)
