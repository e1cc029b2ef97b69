"""Cells in the graph of a bring-up: KV gates and pd_routers are started, moved and ended with who feeds whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpufleet.domain.nodes import NodeName, Role
from gpufleet.engine.drain import drain
from gpufleet.engine.tasks import TaskGraph
from gpufleet.ledger.records import Rental
from gpufleet.serving.commands import pd_router_name
from gpufleet.serving.gate import gate_name
from gpufleet.serving.settings import cell_settings, fed_by, had_gate
from gpufleet.serving.topology import Cell, cell_name
from gpufleet.spec.feeding import gated_nodes

if TYPE_CHECKING:
    from gpufleet.engine.bringup import BringUp, Target


def add_gate(work: BringUp, target: Target, *, after: str) -> None:
    """The KV gate of a prefill node starts once its vLLM serves, or ends where the file wants it no more."""
    node, name = target.node, f"gate {target.node}"
    if node in gated_nodes(work.session.fleet):
        work.task(name, node, lambda: _open_gate(work, node), [after])
    elif target.held and had_gate(target.held.settings):
        work.task(name, node, lambda: _end_program(work, node, gate_name(work.session.fleet)), [after])


def add_cell(work: BringUp, planned: Cell) -> None:
    """A cell opens once its two nodes serve and no cell is left that another prefill node fed before."""
    if not (work.targets[planned.decode].work or work.targets[planned.prefill].work):
        return
    left = [name for name in work.graph.tasks if name.startswith("leave ")]
    needs = [f"serve {planned.decode}", *_serving(planned.prefill), *left]
    work.task(f"cell {planned.name}", planned.decode, lambda: _open_cell(work, planned), needs)


def add_leave(work: BringUp, target: Target) -> list[str]:
    """Before another prefill node feeds a decode node, the one that does lets go of it: two would meet there."""
    last = target.held.settings if target.held else {}
    former, wanted = fed_by(last), _wanted_cell(work, target.node)
    if former is None or (wanted and wanted.items() <= last.items()):
        return []
    return [work.task(f"leave {target.node}", target.node, lambda: _leave(work, target.node, former))]


def forget_cell(work: BringUp, rental: Rental) -> None:
    """A decode node ends: so does its pd_router, where the prefill node that feeds it stays."""
    former = fed_by(rental.settings)
    if former and former in work.targets and rental.node not in work.targets:
        name = pd_router_name(work.session.fleet, rental.node)
        work.task(f"forget {rental.node}", former, lambda: _end_program(work, former, name), ["end"])


def feed_orphans(work: BringUp) -> dict[str, BaseException]:
    """After a run: decode nodes whose prefill node did not come up are fed by gated ones that did.

    The next `up` tries again what the file says. Returns the failures by task.
    """
    planned = work.planned_cells()
    work.lost = {n for n in work.of(Role.PREFILL) if n not in work.rentals or not work.served(*_serving(n))}
    orphans = {cell.decode for cell in planned if cell.prefill in work.lost and cell.decode in work.rentals}
    work.graph = TaskGraph()
    for cell in work.planned_cells():
        if cell.decode in orphans and work.served(f"serve {cell.decode}"):
            work.task(f"cell {cell.name}", cell.decode, lambda cell=cell: _open_cell(work, cell))  # type: ignore[misc]
    return work.graph.run(work.session.stop)


def _serving(prefill: NodeName) -> tuple[str, str]:
    """The tasks after which a prefill node can feed cells; without a gate the second is the name of no task."""
    return f"serve {prefill}", f"gate {prefill}"


def _wanted_cell(work: BringUp, decode: NodeName) -> Mapping[str, str]:
    """Its settings; empty where nobody is to feed the decode node."""
    prefill = next((cell.prefill for cell in work.planned_cells() if cell.decode == decode), None)
    return cell_settings(work.session.fleet, decode, prefill) if prefill else {}


def _open_gate(work: BringUp, node: NodeName) -> None:
    jobs, watch = work.jobs(node), work.watches[node]
    for job in (jobs.gate_program(), jobs.gate(work.topology())):
        with watch.alongside("cell", job.name):
            work.acquirer.run(work.rentals[node], job, watch)


def _open_cell(work: BringUp, planned: Cell) -> None:
    cell = next(cell for cell in work.topology().cells if cell.decode == planned.decode)
    prefill, jobs, watch = work.rentals[cell.prefill], work.jobs(cell.prefill), work.watches[cell.decode]
    for job in (jobs.hello(cell), jobs.pd_router(cell), jobs.prove(cell)):
        with watch.alongside("cell", job.name):
            work.acquirer.run(prefill, job, watch)
    if work.lost:
        work.note_settings(cell.decode, cell_settings(work.session.fleet, cell.decode, cell.prefill))


def _leave(work: BringUp, decode: NodeName, former: NodeName) -> None:
    """End a pd_router once its streams have ended."""
    drain(work.session, {cell_name(decode)})
    if not work.session.stop.is_set():
        _end_program(work, former, pd_router_name(work.session.fleet, decode))


def _end_program(work: BringUp, node: NodeName, name: str) -> None:
    """End one program of a node that stays; on one that ends it ends with it."""
    target = work.targets.get(node)
    if target and target.held:
        work.acquirer.run(target.held, work.acquirer.jobs(target.held).stop(name), work.watches[node])
