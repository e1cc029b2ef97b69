"""Starting, reloading and stopping HAProxy through its playbooks."""

from __future__ import annotations

from collections.abc import Sequence

from gpufleet.domain.nodes import NodeName
from gpufleet.engine.acquire import JOB_SECONDS
from gpufleet.engine.front import Front, local_workdir
from gpufleet.engine.machines import Machines
from gpufleet.engine.session import Session
from gpufleet.engine.watch import NodeWatch
from gpufleet.errors import NodeFailed
from gpufleet.remote.jobs import run_job
from gpufleet.remote.local import LocalMachine
from gpufleet.remote.machine import Machine
from gpufleet.serving.topology import Cell, Topology


def open_front(
    session: Session, machines: Machines, topology: Topology, cells: Sequence[Cell], *, native: bool
) -> None:
    """Bring HAProxy to what serves now: started, reloaded without a cut stream, or left alone when nothing changed.

    Raises:
        JobFailed: haproxy is missing, the port is in use, or the configuration is refused; says which.
    """
    front = Front(session)
    machine, directory = _place(session, machines, front.node)
    config = front.config(topology, cells, native=native, directory=directory)
    _run(session, machine, front.open_job(config, machine.workdir))


def close_front(session: Session, machines: Machines) -> None:
    """Stop HAProxy once its streams have ended.

    Raises:
        JobFailed, ConnectionLost: it may still run.
    """
    front = Front(session)
    machine, directory = _place(session, machines, front.node)
    _run(session, machine, front.close_job(directory, machine.workdir))


def _place(session: Session, machines: Machines, node: NodeName | None) -> tuple[Machine, str]:
    if node is None:
        return LocalMachine(local_workdir(session)), str(session.paths.router)
    rental = next((r for r in session.store.rentals(session.fleet.name) if r.node == node), None)
    if rental is None:
        raise NodeFailed(f"the router's node {node} is not rented", hint=f"gpufleet up {session.path}")
    machine = machines.get(rental)
    return machine, f"{machine.workdir}/router"


def _run(session: Session, machine: Machine, job: object) -> None:
    watch = NodeWatch(None, session.sink)
    watch.phase("router")
    run_job(machine, job, on_event=watch.event, stop=session.stop, deadline_seconds=JOB_SECONDS)  # type: ignore[arg-type]
