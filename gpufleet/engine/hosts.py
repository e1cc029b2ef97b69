"""Hosts that are lent, not rented: taken on the host itself before anything runs there, left as they were found.

The provider keeps its leases on this machine; the lease file on the host keeps operators apart who do not know of each
other. Nothing of ours may run, and nothing may be cleaned up, on a host whose lease file names somebody else.
"""

from __future__ import annotations

from gpufleet.domain.progress import Progress, ProgressState
from gpufleet.engine.front import Front
from gpufleet.engine.jobs import NodeJobs
from gpufleet.engine.machines import Machines, endpoint_of, was_reached
from gpufleet.engine.paths import NodePaths
from gpufleet.engine.session import Session
from gpufleet.errors import NodeFailed
from gpufleet.ledger.records import Rental
from gpufleet.providers.base import LeasesHosts, Provider
from gpufleet.remote.jobs import run_job
from gpufleet.remote.machine import Machine

LOGIN_SECONDS = 15.0
"""A lent host does not boot for us: one that takes no login by then counts as down."""
_UNUSED_LOGIN_SECONDS = 5.0
_CLEANUP_SECONDS = 900.0
_HELD_BY_ANOTHER = 75
"""Exit status of the lease script, see `LeasesHosts.lease_script`."""


def take_host(provider: Provider, rental: Rental, machine: Machine) -> None:
    """Write our lease on the host, where the provider leases hosts; taking it again is fine.

    Raises:
        NodeFailed: somebody else holds it (says who), or it cannot be written.
    """
    if not isinstance(provider, LeasesHosts):
        return
    refusal = _take(provider, rental, machine)
    if refusal is not None:
        raise NodeFailed(f"{rental.node}: {_where(rental)}: {refusal}", where=str(rental.node))


def leave_host(session: Session, provider: Provider, rental: Rental) -> None:
    """Stop what the fleet runs on a lent host and give its lease file back. The host itself goes on.

    A host that cannot be reached is given back all the same, and named: our processes may still run there.

    Raises:
        Interrupted: the user asked to stop.
    """
    if not was_reached(rental):
        return
    session.sink(Progress(rental.node, "release", message="stopping what runs there"))
    try:
        with Machines(session) as machines:
            _clean(session, provider, rental, machines)
    except NodeFailed as error:
        session.store.log_event(session.fleet.name, rental.node, "not-cleaned", {"why": error.message})
        if rental.fingerprint:
            told = f"given back, but not cleaned up: {error.message}"
            session.sink(Progress(rental.node, "release", ProgressState.FAILED, message=told))


def _clean(session: Session, provider: Provider, rental: Rental, machines: Machines) -> None:
    """The lease is taken before anything is touched: it may have gone to somebody else since."""
    within = LOGIN_SECONDS if rental.fingerprint else _UNUSED_LOGIN_SECONDS
    machine = machines.get(rental, within=within)
    if isinstance(provider, LeasesHosts) and _take(provider, rental, machine) is not None:
        return
    failure = None
    stop_router = Front(session).close_job(NodePaths(machine.workdir).router, machine.workdir)
    try:
        for job in (stop_router, NodeJobs(session.fleet, rental.node, machine.workdir).cleanup()):
            run_job(
                machine,
                job,
                on_event=lambda _: None,
                stop=session.stop,
                reconnect=lambda: machines.again(rental),
                deadline_seconds=_CLEANUP_SECONDS,
            )
    except NodeFailed as error:
        failure = error
    if isinstance(provider, LeasesHosts):
        script = provider.release_script(rental.instance_id)
        machines.get(rental, within=within).run("exec sh -s", stdin=script.encode())
    if failure is not None:
        raise failure


def _take(provider: LeasesHosts, rental: Rental, machine: Machine) -> str | None:
    """Why the lease is not ours, or None when it is."""
    done = machine.run("exec sh -s", stdin=provider.lease_script(rental.instance_id).encode())
    if done.exit_code == 0:
        return None
    said = " ".join(done.stderr.split()) or f"exit status {done.exit_code}"
    return said if done.exit_code == _HELD_BY_ANOTHER else f"its lease file cannot be written: {said}"


def _where(rental: Rental) -> str:
    endpoint = endpoint_of(rental)
    return f"{endpoint.user}@{endpoint.host}:{endpoint.port}"
