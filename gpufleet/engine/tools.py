"""Looking at and into nodes: logs, shells, commands, and what would run on them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from gpufleet.catalog.shipped import names
from gpufleet.domain.market import WORKDIR, Runtime
from gpufleet.domain.nodes import NodeName, Role
from gpufleet.engine.front import Front
from gpufleet.engine.jobs import NodeJobs
from gpufleet.engine.machines import Machines, endpoint_of, private_key_of
from gpufleet.engine.paths import NodePaths
from gpufleet.engine.session import Session
from gpufleet.errors import UsageError
from gpufleet.ledger.records import Rental
from gpufleet.playbook.compile import compile_script
from gpufleet.playbook.load import load_shipped
from gpufleet.remote.errors import HostKeyChanged
from gpufleet.remote.jobs import job_names, tail_job_log
from gpufleet.remote.keys import ensure_keypair
from gpufleet.remote.machine import Completed, Machine
from gpufleet.remote.shell import known_hosts_line, ssh_argv
from gpufleet.routing.files import write_atomically
from gpufleet.serving.commands import container_name
from gpufleet.serving.topology import Topology, build_topology

_EXEC_SECONDS = 3600.0


def rental_of(session: Session, node: NodeName) -> Rental:
    """The live rental that stands for a node.

    Raises:
        UsageError: it is not rented.
    """
    rental = session.rental_of(node)
    if rental is None:
        raise UsageError(f"{node} is not rented now", hint=f"gpufleet status {session.path}")
    return rental


def ssh_command(session: Session, node: NodeName) -> list[str]:
    """The ``ssh`` command line that opens a shell on a node, with the rental's pinned host key.

    Raises:
        UsageError: the node is not rented.
        HostKeyChanged: no host key is pinned yet.
    """
    rental = rental_of(session, node)
    endpoint = endpoint_of(rental)
    if endpoint.host_key is None:
        raise HostKeyChanged(f"no host key is pinned for {node} yet", hint=f"gpufleet up {session.path}")
    known_hosts = session.paths.known_hosts / f"{rental.provider}-{rental.rental_id}"
    write_atomically(known_hosts, known_hosts_line(endpoint, endpoint.host_key))
    key = private_key_of(endpoint, ensure_keypair(session.paths.keys))
    return list(ssh_argv(endpoint, key, known_hosts))


def execute(session: Session, nodes: Sequence[NodeName], command: str) -> Iterator[tuple[NodeName, Completed]]:
    """Run a shell line on several nodes at once; results come in the order asked for.

    Raises:
        UsageError: one of them is not rented.
        ConnectionLost, HostKeyChanged: a node cannot be reached.
    """
    rentals = [rental_of(session, node) for node in nodes]
    with Machines(session) as machines, ThreadPoolExecutor(max_workers=max(1, len(rentals))) as pool:
        results = pool.map(lambda r: machines.get(r, within=15.0).run(command, timeout=_EXEC_SECONDS), rentals)
        yield from zip(nodes, results, strict=True)


def node_logs(session: Session, node: NodeName, *, source: str | None, follow: bool, tail: int) -> Iterator[bytes]:
    """The log of a node's main process, or of a container or job that ``source`` names.

    Raises:
        UsageError: the node is not rented, or has no such container or job; says which there are.
        ConnectionLost, HostKeyChanged: it cannot be reached.
    """
    rental = rental_of(session, node)
    with Machines(session) as machines:
        machine = machines.get(rental, within=15.0)
        if source is not None and source in (jobs := job_names(machine)):
            yield from tail_job_log(machine, source, follow=follow, lines=tail)
            return
        if source is not None and source not in (services := _services(machine, rental)):
            known = ", ".join(sorted([*services, *jobs])) or "none"
            raise UsageError(f"{node} has no log '{source}'", hint=f"there is: {known}")
        argv = _log_argv(rental, source or container_name(session.fleet, node.slug), follow=follow, tail=tail)
        yield from machine.stream(f"exec {shlex.join(argv)} 2>&1")


def _log_argv(rental: Rental, service: str, *, follow: bool, tail: int) -> list[str]:
    if rental.runtime is Runtime.INSIDE:
        return ["tail", "-n", str(tail), *(["-F"] if follow else []), f"{_run_folder(rental)}/{service}/log"]
    return ["docker", "logs", "--tail", str(tail), *(["-f"] if follow else []), service]


def _services(machine: Machine, rental: Rental) -> list[str]:
    names = "docker ps -a --format '{{.Names}}'"
    inside = f"ls {shlex.quote(_run_folder(rental))}"
    return machine.run(inside if rental.runtime is Runtime.INSIDE else names, timeout=30.0).stdout.split()


def _run_folder(rental: Rental) -> str:
    return NodePaths(rental.ssh.workdir if rental.ssh else WORKDIR).run


def render(session: Session, what: str, node: NodeName | None) -> str:
    """What would run: ``launch`` of a node, ``haproxy``, or a playbook's script.

    A launch has a line for each program: the main one first, then the node's gate and routers.
    Addresses of nodes that are not rented yet are placeholders from 10.0.0.0/16.

    Raises:
        UsageError: unknown ``what``, or ``launch`` without a node.
    """
    topology = _topology(session)
    if what == "haproxy":
        return _haproxy(session, topology)
    if what == "launch":
        if node is None:
            raise UsageError(
                "a launch command is that of a node", hint=f"gpufleet render {session.path} launch decode/0"
            )
        rental = session.rental_of(node)
        runtime = rental.runtime if rental else Runtime.DOCKER
        jobs = NodeJobs(session.fleet, node, _workdir(session, node), runtime=runtime)
        return "".join(f"{shlex.join(jobs.command_line(launch))}\n" for launch in jobs.launches(topology))
    if what not in names("playbooks"):
        known = ", ".join(["launch", "haproxy", *names("playbooks")])
        raise UsageError(f"there is nothing to render called '{what}'", hint=f"there is: {known}")
    return compile_script(load_shipped(what), what)


def _haproxy(session: Session, topology: Topology) -> str:
    from gpufleet.routing.haproxy import render_haproxy

    front = Front(session)
    native = bool(session.fleet.nodes_of(Role.NATIVE))
    directory = NodePaths(_workdir(session, front.node)).router if front.node else str(session.paths.router)
    return render_haproxy(front.config(topology, topology.cells, native=native, directory=directory))


def _topology(session: Session) -> Topology:
    known = {r.node: r.private_ip for r in session.store.rentals(session.fleet.name)}
    pools = list(session.fleet.pools)
    addresses = {n: known.get(n) or f"10.0.{pools.index(n.pool)}.{n.index + 1}" for n in session.fleet.nodes()}
    return build_topology(session.fleet, addresses)


def _workdir(session: Session, node: NodeName) -> str:
    rental = session.rental_of(node)
    return rental.ssh.workdir if rental and rental.ssh else WORKDIR
