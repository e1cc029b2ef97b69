"""`up`, `scale` and `down` themselves, on nodes that are left alone: what runs on a node costs nothing more.

Everything about money is the program's own: plan, task graph, create calls, ends, locks and the ledger. Connections,
jobs and the front door are taken out, and count as having succeeded at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gpufleet.domain.status import Serving
from gpufleet.engine import api, down, status, up
from gpufleet.engine.acquire import Acquirer
from gpufleet.engine.bringup import BringUp
from gpufleet.engine.session import Session
from gpufleet.engine.watch import NodeWatch
from gpufleet.ledger.records import Rental
from gpufleet.planning.model import Plan


def bring_up(session: Session) -> None:
    api.up(session, api.make_plan(session))


def scale(session: Session, counts: Mapping[str, int]) -> None:
    api.scale(session, api.plan_scaled(session, counts))


def take_down(session: Session) -> None:
    api.down(session)


def leave_nodes_alone(patch: pytest.MonkeyPatch) -> None:
    """Take out what needs a machine behind a rental."""
    patch.setattr(Acquirer, "_come_up", _come_up)
    patch.setattr(Acquirer, "run", lambda *_: None)
    patch.setattr(up, "_open", _open)
    patch.setattr(down, "close_front", lambda *_: None)
    patch.setattr(status, "fleet_status", lambda *_, **__: None)


def _come_up(acquirer: Acquirer, rental: Rental, watch: NodeWatch) -> Rental:
    running = acquirer._wait_running(rental)
    return replace(running, private_ip=running.private_ip or "127.0.0.1")


def _open(session: Session, work: BringUp, plan: Plan) -> None:
    for rental in work.rentals.values():
        session.store.set_serving(rental.provider, rental.instance_id, Serving.READY)
