"""The plan as a table: what happens to each node, at which price, and how long it takes."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Protocol

from rich.console import Group, RenderableType

from gpufleet.domain.market import Offer
from gpufleet.domain.money import usd, usd_per_hour
from gpufleet.domain.nodes import NodeName, Role
from gpufleet.reporting.console import BAD, DIM, GOOD, WARN, table, text
from gpufleet.reporting.words import duration

_STYLES = {"create": GOOD, "update": WARN, "replace": WARN, "drain": BAD, "terminate": BAD}
_OBVIOUS = ("create", "keep")
"""Kinds that need no reason."""


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


def plan_view(plan: Planned, drift: Sequence[Change] = ()) -> RenderableType:
    """The actions, why, the changed fields, the totals, and what stands against carrying it out."""
    parts: list[RenderableType] = [_actions(plan)] if plan.actions else []
    parts += [text(f"{a.kind} {a.node}: {a.reason}", DIM) for a in plan.actions if a.reason and a.kind not in _OBVIOUS]
    parts += [text(f"{a.kind} {a.node}: {change_line(c)}") for a in plan.actions for c in a.changes]
    parts += [text(f"drift: {change_line(c)}", WARN) for c in drift]
    parts += [text(""), text(totals(plan))]
    parts += [text(f"problem: {problem}", BAD) for problem in plan.problems]
    return Group(*parts)


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
    rows = table("action", "node", "role", "where", "$/h", "ready in", right=("$/h", "ready in"), folding=("where",))
    for action in plan.actions:
        rows.add_row(
            text(action.kind, _STYLES.get(action.kind, DIM)),
            text(action.node),
            text(action.role or "?"),
            text(_where(action)),
            text(usd_per_hour(action.usd_per_hour).removesuffix("/h")),
            text(duration(action.seconds_to_ready) if action.seconds_to_ready else ""),
        )
    rows.add_section()
    rows.add_row("", "", "", text("total after", "bold"), text(usd(plan.usd_per_hour_after), "bold"))
    return rows


def _where(action: PlannedAction) -> str:
    """``mock H200:8 eu-north-1`` of an offer, ``mock i-3f2a`` of what is rented already."""
    offer = action.offer
    if offer is None:
        return " ".join(filter(None, (action.provider, action.instance_id)))
    return " ".join(filter(None, (offer.provider, str(offer.gpu), offer.region, "spot" if offer.spot else "")))


def _shown(value: str | None) -> str:
    return "(none)" if value is None else value or "''"
