"""The fleet's status as tables."""

from __future__ import annotations

from datetime import datetime

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gpufleet.domain.market import InstanceState
from gpufleet.domain.money import usd, usd_per_hour
from gpufleet.domain.status import CellStatus, EndpointStatus, FleetStatus, GateStatus, NodeStatus, Serving
from gpufleet.reporting.console import BAD, DIM, GOOD, WARN, Page, table, text
from gpufleet.reporting.words import count, named, plain, since

_SERVING_STYLES = {Serving.READY: GOOD, Serving.STARTING: WARN, Serving.SICK: BAD, Serving.UNKNOWN: DIM}

_UP = {True: ("up", GOOD), False: ("down", BAD), None: ("?", DIM)}
_GATE_NUMBERS = ("waiting", "queue", "landed", "failed", "takes", "GB")


def status_view(status: FleetStatus, now: datetime) -> RenderableType:
    """Nodes, cells, endpoint, money, and what is wrong."""
    parts: list[RenderableType] = [text(headline(status), "bold")]
    if status.nodes:
        parts += [text(""), _nodes(status.nodes, now)]
    parts += [text(note, DIM) for note in _notes(status.nodes)]
    if status.cells:
        parts += [text(""), _cells(status.cells)]
    if status.gates:
        parts += [text(""), _gates(status.gates)]
        parts += [text(line, DIM) for line in _gate_notes(status.gates)]
    if status.endpoint and (status.nodes or status.endpoint.up):
        parts += [text(""), _endpoint(status.endpoint)]
    parts += [text(f"problem: {problem}", BAD) for problem in status.problems]
    return Page(*parts)


def _notes(nodes: tuple[NodeStatus, ...]) -> list[str]:
    """``decode/0-1: the note that both have``."""
    notes = dict.fromkeys(node.note for node in nodes if node.note)
    return [f"{named(node.node for node in nodes if node.note == note)}: {note}" for note in notes]


def headline(status: FleetStatus) -> str:
    """``quickstart: 5 nodes, 5 ready · $150.00/h now · $3.12 so far``."""
    ready = sum(node.serving is Serving.READY for node in status.nodes)
    nodes = f"{count(len(status.nodes), 'node')}, {ready} ready" if status.nodes else "nothing is rented"
    money = f"{usd_per_hour(status.bill.usd_per_hour)} now · {usd(status.bill.total)} so far"
    return f"{status.fleet}: {nodes} · {money}"


def _nodes(nodes: tuple[NodeStatus, ...], now: datetime) -> Table:
    rows = table("node", "state", "gpu", "address", "up", "$/h", "provider", right=("up", "$/h"))
    for node in sorted(nodes, key=lambda status: status.node):
        rows.add_row(
            text(node.node),
            text(_state(node), _SERVING_STYLES[node.serving]),
            text(node.gpu or "?"),
            text(node.address or "-"),
            text(since(node.since, now)),
            text(usd_per_hour(node.usd_per_hour).removesuffix("/h")),
            text(node.provider),
        )
    return rows


def _state(node: NodeStatus) -> str:
    """The service's word while the machine runs, else the machine's."""
    return str(node.serving) if node.state is InstanceState.RUNNING else str(node.state)


def _cells(cells: tuple[CellStatus, ...]) -> Table:
    """Numbers that nobody knows have no column."""
    numbers = {
        name: [getattr(cell, name) for cell in cells]
        for name in ("active", "queued", "served")
        if any(getattr(cell, name) is not None for cell in cells)
    }
    rows = table("route", "nodes", "up", *numbers, right=tuple(numbers), folding=("nodes",))
    for index, cell in enumerate(cells):
        rows.add_row(
            text(cell.name),
            text(named(cell.nodes)),
            text(*_UP[cell.up]),
            *(text("?" if column[index] is None else column[index]) for column in numbers.values()),
        )
    return rows


def _gates(gates: tuple[GateStatus, ...]) -> Table:
    """One row for each decode node that a gate feeds: times are p95, since that is what callers notice."""
    rows = table("gate", "up", "waiting", "queue", "feeds", "landed", "failed", "takes", "GB", right=_GATE_NUMBERS)
    for gate in gates:
        rows.add_row(
            text(gate.node),
            text(*_UP[gate.up]),
            text("?" if gate.up is None else gate.waiting),
            text(_within(gate.queue_p95_s)),
            *map(text, [""] * 5),
        )
        for fed in gate.feeds:
            numbers = (fed.landed, fed.failed, _within(fed.handover_p95_s), f"{fed.bytes / 1e9:.1f}")
            rows.add_row(*map(text, [""] * 4), text(fed.node), *map(text, numbers))
    return rows


def _gate_notes(gates: tuple[GateStatus, ...]) -> list[str]:
    notes = [f"{gate.node}: {gate.note}" for gate in gates if gate.note]
    for gate in gates:
        refused = ", ".join(f"{number} {reason}" for reason, number in sorted(gate.refusals.items()))
        notes += [f"{gate.node} refused: {refused}"] if refused else []
    return notes


def _within(seconds: float | None) -> str:
    """``<0.25 s``: a histogram knows no more."""
    if seconds is None:
        return "-"
    return f"<{seconds:g} s" if seconds < 300 else "300 s+"


def _endpoint(endpoint: EndpointStatus) -> Table:
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(overflow="fold")
    state = text("up", GOOD) if endpoint.up else text("down", BAD)
    rows.add_row("endpoint", text(endpoint.url).append("  ").append_text(state).append(_waiting(endpoint)))
    rows.add_row("channels", text(", ".join(endpoint.channels) or "-"))
    if endpoint.tls_fingerprint:
        rows.add_row("sha-256", Text("\n".join(_halves(endpoint.tls_fingerprint))))
    return rows


def _waiting(endpoint: EndpointStatus) -> str:
    return f"  {count(endpoint.waiting, 'request')} waiting" if endpoint.waiting else ""


def _halves(fingerprint: str) -> tuple[str, str]:
    """``AA:BB:...`` on two lines, broken between bytes, since 95 characters fit no terminal of 80."""
    middle = len(fingerprint) // 2 + 1
    return plain(fingerprint[:middle]), plain(fingerprint[middle:])
