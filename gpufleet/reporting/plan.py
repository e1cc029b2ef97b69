"""The plan as a table: what happens to each node, at which price, and how long it takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Protocol, TypeVar

from rich.console import RenderableType

from gpufleet.domain.market import Offer
from gpufleet.domain.money import usd, usd_per_hour
from gpufleet.domain.nodes import NodeName, Role
from gpufleet.reporting.console import BAD, DIM, GOOD, WARN, Page, table, text
from gpufleet.reporting.words import duration, named

_STYLES = {"create": GOOD, "update": WARN, "replace": WARN, "drain": BAD, "terminate": BAD}
_OBVIOUS = ("create", "keep")
"""Kinds that need no reason."""

Fact = TypeVar("Fact")


class Change(Protocol):
    """A field that differs (see `gpufleet.planning.model.FieldChange`)."""

    @property
    def field(self) -> str: ...
    @property
    def before(self) -> str | None: ...
    @property
    def after(self) -> str | None: ...


class PlannedAction(Protocol):
    """What a row needs (see `gpufleet.planning.model.Action`)."""

    @property
    def kind(self) -> str: ...
    @property
    def node(self) -> NodeName: ...
    @property
    def role(self) -> Role | None: ...
    @property
    def provider(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def offer(self) -> Offer | None: ...
    @property
    def instance_id(self) -> str | None: ...
    @property
    def usd_per_hour(self) -> Decimal | None: ...
    @property
    def changes(self) -> Sequence[Change]: ...
    @property
    def seconds_to_ready(self) -> float | None: ...


class Planned(Protocol):
    """What the table needs (see `gpufleet.planning.model.Plan`)."""

    @property
    def actions(self) -> Sequence[PlannedAction]: ...
    @property
    def usd_per_hour_now(self) -> Decimal: ...
    @property
    def usd_per_hour_after(self) -> Decimal: ...
    @property
    def seconds_to_ready(self) -> float: ...
    @property
    def problems(self) -> Sequence[str]: ...
    @property
    def notes(self) -> Sequence[str]: ...


def plan_view(plan: Planned, drift: Sequence[Change] = ()) -> RenderableType:
    """The actions, why, the changed fields, the totals, and what stands against carrying it out.

    What several nodes share is told once. A reason that the changed fields tell already is left out, and so is drift
    that the plan is about to undo.
    """
    parts: list[RenderableType] = [_actions(plan)] if plan.actions else []
    parts += [text(line, DIM) for line in _reasons(plan)]
    parts += [text(line) for line in _changes(plan)]
    parts += [text(f"drift: {line}", WARN) for line in _drift(plan, drift)]
    parts += [text(""), text(totals(plan))]
    parts += [text(f"note: {note}", DIM) for note in plan.notes]
    parts += [text(f"problem: {problem}", BAD) for problem in plan.problems]
    return Page(*parts)


def _reasons(plan: Planned) -> list[str]:
    said = [a for a in plan.actions if a.kind not in _OBVIOUS and _says_more(a)]
    shared = _by_nodes(((a.kind, a.reason), a.node) for a in said)
    return [f"{kind} {nodes}: {reason}" for (kind, reason), nodes in shared]


def _says_more(action: PlannedAction) -> bool:
    """Whether the reason is not just that the fields changed which are told anyway."""
    return bool(action.reason) and not any(action.reason.startswith(change.field) for change in action.changes)


def _changes(plan: Planned) -> list[str]:
    shared = _by_nodes(((a.kind, change_line(c)), a.node) for a in plan.actions for c in a.changes)
    return [f"{kind} {nodes}: {change}" for (kind, change), nodes in shared]


def _drift(plan: Planned, drift: Sequence[Change]) -> list[str]:
    undone = {f"{a.node}.settings.{change_line(c)}" for a in plan.actions for c in a.changes}
    undone |= {str(a.node) for a in plan.actions if a.kind in {"create", "terminate"}}
    left = [c for c in drift if change_line(c) not in undone and c.field not in undone]
    of_nodes = [(c, *c.field.partition(".")) for c in left if "/" in c.field.partition(".")[0]]
    shared = _by_nodes(((dot + rest, c.before, c.after), NodeName.parse(node)) for c, node, dot, rest in of_nodes)
    told = [f"{nodes}{rest}: {_shown(before)} -> {_shown(after)}" for (rest, before, after), nodes in shared]
    return told + [change_line(c) for c in left if "/" not in c.field.partition(".")[0]]


def _by_nodes(facts: Iterable[tuple[Fact, NodeName]]) -> list[tuple[Fact, str]]:
    """Each fact once, with the nodes it holds for."""
    nodes: dict[Fact, list[NodeName]] = {}
    for fact, node in facts:
        nodes.setdefault(fact, []).append(node)
    return [(fact, named(of)) for fact, of in nodes.items()]


def totals(plan: Planned) -> str:
    """``3 create, 2 keep · $0.00/h -> $150.00/h ($3,600.00 a day) · ready in 2 h 40 min``."""
    kinds = [action.kind for action in plan.actions]
    counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)) or "nothing to do"
    money = f"{usd_per_hour(plan.usd_per_hour_now)} -> {usd_per_hour(plan.usd_per_hour_after)}"
    parts = [counted, f"{money} ({usd(plan.usd_per_hour_after * 24)} a day)"]
    if plan.seconds_to_ready:
        parts.append(f"ready in {duration(plan.seconds_to_ready)}")
    return " · ".join(parts)


def change_line(change: Change) -> str:
    """``engine.mtp: true -> false``."""
    return f"{change.field}: {_shown(change.before)} -> {_shown(change.after)}"


def _actions(plan: Planned) -> RenderableType:
    timed = [action.seconds_to_ready for action in plan.actions if action.seconds_to_ready]
    heads = ["action", "node", "role", "where", "$/h", *(["ready in"] if timed else [])]
    rows = table(*heads, right=("$/h", "ready in"), folding=("where",))
    for action in plan.actions:
        cells = [
            text(action.kind, _STYLES.get(action.kind, DIM)),
            text(action.node),
            text(action.role or "?"),
            text(_where(action)),
            text(usd_per_hour(action.usd_per_hour).removesuffix("/h")),
        ]
        rows.add_row(*cells, *([text(_ready_in(action))] if timed else []))
    rows.add_section()
    rows.add_row("", "", "", text("total after", "bold"), text(usd(plan.usd_per_hour_after), "bold"))
    return rows


def _ready_in(action: PlannedAction) -> str:
    return duration(action.seconds_to_ready) if action.seconds_to_ready else ""


def _where(action: PlannedAction) -> str:
    """``mock H200:8 eu-north-1`` of an offer, ``mock i-3f2a`` of what is rented already."""
    offer = action.offer
    if offer is None:
        return " ".join(filter(None, (action.provider, action.instance_id)))
    return " ".join(filter(None, (offer.provider, str(offer.gpu), offer.region, "spot" if offer.spot else "")))


def _shown(value: str | None) -> str:
    return "(none)" if value is None else value or "''"
