"""How the KV gates of a fleet are, asked on their nodes: they listen on private addresses alone."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from gpufleet.domain.nodes import NodeName
from gpufleet.domain.status import GateStatus
from gpufleet.engine.machines import Machines, was_reached
from gpufleet.engine.session import Session
from gpufleet.errors import NodeFailed
from gpufleet.ledger.records import Rental
from gpufleet.serving.gate import GATE_METRICS
from gpufleet.serving.gatestats import gate_status
from gpufleet.serving.settings import fed_by
from gpufleet.serving.topology import GATE_PORT
from gpufleet.spec.feeding import gated_nodes

_SECONDS = 5.0
"""A node that takes longer to answer tells nothing about its gate."""


def read_gates(session: Session) -> tuple[GateStatus, ...]:
    """Every gate of the fleet that was started, in file order; one that cannot be asked is told with the reason.

    For `status`, and for whoever decides how many nodes there should be: waits in its queue say that a prefill node
    feeds too many, an empty queue that it could feed more.
    """
    rentals = {r.node: r for r in session.store.rentals(session.fleet.name) if not r.duplicate}
    asked = [rentals[node] for node in gated_nodes(session.fleet) if node in rentals and rentals[node].settings]
    if not asked:
        return ()
    fed = [rental for rental in rentals.values() if fed_by(rental.settings)]
    with Machines(session) as machines, ThreadPoolExecutor(max_workers=len(asked)) as pool:
        return tuple(pool.map(lambda rental: _read(machines, rental, fed), asked))


def _read(machines: Machines, prefill: Rental, fed: Sequence[Rental]) -> GateStatus:
    own = {r.private_ip: r.node for r in fed if r.private_ip and fed_by(r.settings) == prefill.node}
    url = f"http://{prefill.private_ip}:{GATE_PORT}{GATE_METRICS}"
    try:
        if not was_reached(prefill):
            return _unknown(prefill.node, "nobody has logged in there yet")
        machine = machines.get(prefill, within=_SECONDS)
        done = machine.run(f"curl -fsS --noproxy '*' --max-time {_SECONDS:g} {url}", timeout=2 * _SECONDS)
    except NodeFailed as failure:
        return _unknown(prefill.node, failure.message)
    if done.exit_code != 0:
        return GateStatus(prefill.node, up=False, note=(done.stderr.strip().splitlines() or ["no answer"])[-1])
    return gate_status(prefill.node, done.stdout, own)


def _unknown(node: NodeName, why: str) -> GateStatus:
    return GateStatus(node, up=None, note=why)
