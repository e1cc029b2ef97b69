"""Let the streams on a node end before the node does."""

from __future__ import annotations

import time
from collections.abc import Set

from gpufleet.domain.nodes import NodeName
from gpufleet.domain.progress import Progress
from gpufleet.engine.front import NATIVE, Front
from gpufleet.engine.jobs import DRAIN_SECONDS
from gpufleet.engine.session import Session
from gpufleet.routing.errors import RouterGone, RouterRefused

_LOOK_SECONDS = 0.2


def backends_of(session: Session, nodes: Set[NodeName]) -> frozenset[str]:
    """Backends that only these nodes serve, or that need one of them."""
    return frozenset(_backends(Front(session), nodes))


def drain(session: Session, names: Set[str], *, within: float = DRAIN_SECONDS) -> None:
    """Send no new requests to these backends and wait until they are idle.

    Does nothing where the router is not on this machine or does not run. Returns early when the user asks to stop.
    """
    router = Front(session).runtime
    if router is None:
        return
    try:
        names = {server.name for server in router.servers() if server.name in names}
        for name in names:
            router.drain(name)
        deadline = time.monotonic() + within
        while names and any(s.active for s in router.servers() if s.name in names):
            session.sink(Progress(None, "drain", message=f"waiting for the last streams of {', '.join(sorted(names))}"))
            if time.monotonic() > deadline or session.stop.wait(_LOOK_SECONDS):
                return
    except (RouterGone, RouterRefused):
        return


def undrain(session: Session, names: Set[str]) -> None:
    """Send requests again to backends that serve now: a drained one stays so over a reload, whoever is behind it."""
    router = Front(session).runtime
    if router is None:
        return
    try:
        for name in {s.name for s in router.servers() if s.name in names and not s.up}:
            router.ready(name)  # whether its check is under way or it was drained, it is to serve
    except (RouterGone, RouterRefused):
        return


def _backends(front: Front, nodes: Set[NodeName]) -> set[str]:
    """A cell stands and falls with each of its nodes; the native pool stands while one of them is left."""
    cells = [cell for cell in front.cells() if cell.up is not None]
    return {cell.name for cell in cells if (all if cell.name == NATIVE else any)(node in nodes for node in cell.nodes)}
