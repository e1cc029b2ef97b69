"""From what is to what should be, as one ordered plan. Pure: same arguments, same plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal

from gpufleet.domain.market import InstanceState, Offer
from gpufleet.domain.money import usd, usd_per_hour
from gpufleet.domain.nodes import NodeName, Role
from gpufleet.domain.status import Serving
from gpufleet.planning.model import (
    WANTED_KINDS,
    Action,
    ActionKind,
    Desired,
    FieldChange,
    Observed,
    ObservedNode,
    Plan,
)
from gpufleet.planning.placement import place
from gpufleet.spec.model import Fleet

HARDWARE_FIELDS = frozenset({"gpu", "provider", "region"})
"""Settings that no playbook can change on a rental."""
_LOST = frozenset(
    {
        InstanceState.STOPPED,
        InstanceState.TERMINATING,
        InstanceState.TERMINATED,
        InstanceState.ERROR,
        InstanceState.PREEMPTED,
    }
)
_ORDER = (
    ActionKind.DRAIN,
    ActionKind.TERMINATE,
    ActionKind.REPLACE,
    ActionKind.CREATE,
    ActionKind.UPDATE,
    ActionKind.KEEP,
)


def plan(desired: Desired, observed: Observed, now: datetime) -> Plan:
    """Work out what to do.

    Ends come first and rentals after them: what ends costs money for nothing from this moment, it frees the stock,
    the quota and the budget that new rentals need, and a run that is cut short has then cost less, not more. A drain
    precedes the terminations, so that the streams on it can end. Within a kind, nodes stand in file order.

    A plan with problems is not to be carried out. It still shows what would happen.

    Args:
        now: when ``observed`` was true.
    """
    chosen = _choose(desired, observed.nodes)
    fates = [_fate(desired, name, chosen.get(name)) for name in desired.nodes()]
    new = [fate.node for fate in fates if fate.kind in {ActionKind.CREATE, ActionKind.REPLACE}]
    placement = place(desired, new, observed.offers, _regions_in_use(fates, chosen))
    actions = [action for fate in fates for action in _with_offer(fate, placement.offers)]
    actions += _ends(desired, observed, {_identity(node) for node in chosen.values()})
    timed = _with_times(desired, actions)
    after = observed.pending_usd_per_hour + _cost(timed)
    seconds = max((action.seconds_to_ready for action in timed), default=0.0)
    return Plan(
        actions=tuple(sorted(timed, key=lambda action: _rank(desired.fleet, action))),
        usd_per_hour_now=observed.pending_usd_per_hour + _bills_now(observed.nodes),
        usd_per_hour_after=after,
        seconds_to_ready=seconds,
        problems=(
            *placement.problems,
            *_distance_problems(desired, timed, chosen),
            *_cluster_problems(observed, timed),
            *(_budget_problems(desired, observed, after, seconds) if _spends(timed) else ()),
        ),
        made_at=now,
    )


def _choose(desired: Desired, nodes: Sequence[ObservedNode]) -> dict[NodeName, ObservedNode]:
    """The rental that stands for each wanted node; all others end."""
    chosen: dict[NodeName, ObservedNode] = {}
    for node in sorted(nodes, key=lambda node: _worth(desired, node)):
        if desired.wants(node.node) and not node.duplicate and not node.ending:
            chosen[node.node] = node
    return chosen


def _worth(desired: Desired, node: ObservedNode) -> tuple[bool, bool, bool, bool, str]:
    """Sorts the best rental of a node last."""
    fits = desired.wants(node.node) and not _hardware_changes(desired.fleet, node)
    same = not _setting_changes(desired, node)
    alive = node.state not in _LOST
    return (alive, fits, node.serving is Serving.READY, same, f"{node.provider} {node.instance_id}")


def _fate(desired: Desired, name: NodeName, node: ObservedNode | None) -> Action:
    fleet = desired.fleet
    role, provider = fleet.role_of(name.pool), fleet.provider_of(name.pool).use
    if node is None:
        return Action(ActionKind.CREATE, name, role, provider, "missing")
    known = Action(ActionKind.KEEP, name, role, node.provider, "as asked", None, node.instance_id, node.usd_per_hour)
    if node.state in _LOST:
        return replace(known, kind=ActionKind.REPLACE, provider=provider, reason=f"the provider says {node.state}")
    hardware = _hardware_changes(fleet, node)
    if hardware:
        why = f"{_named(hardware)} changed in the file"
        return replace(known, kind=ActionKind.REPLACE, provider=provider, reason=why, changes=hardware)
    changes = _setting_changes(desired, node)
    reason = _reason_to_update(node, changes)
    return replace(known, kind=ActionKind.UPDATE, reason=reason, changes=changes) if reason else known


def _reason_to_update(node: ObservedNode, changes: Sequence[FieldChange]) -> str | None:
    if node.serving is Serving.SICK:
        return "its health check fails"
    if node.serving is not Serving.READY or not node.settings:
        return "not up yet"
    return f"{_named(changes)} changed in the file" if changes else None


def _named(changes: Sequence[FieldChange]) -> str:
    names = [change.field for change in changes]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _hardware_changes(fleet: Fleet, node: ObservedNode) -> tuple[FieldChange, ...]:
    pool = fleet.pools[node.node.pool]
    allowed = [use.use for use in fleet.providers_of(node.node.pool)]
    pairs = [
        ("gpu", str(node.gpu), str(pool.gpu)),
        ("provider", node.provider, node.provider if node.provider in allowed else allowed[0]),
        ("region", node.region, pool.region or node.region),
    ]
    return tuple(FieldChange(field, before, after) for field, before, after in pairs if before != after)


def _setting_changes(desired: Desired, node: ObservedNode) -> tuple[FieldChange, ...]:
    if not node.settings:
        return ()
    return field_changes(node.settings, desired.settings.get(node.node, {}), leave_out=HARDWARE_FIELDS)


def field_changes(
    before: Mapping[str, str], after: Mapping[str, str], *, leave_out: frozenset[str] = frozenset()
) -> tuple[FieldChange, ...]:
    """Fields that differ, by name."""
    names = sorted((before.keys() | after.keys()) - leave_out)
    return tuple(
        FieldChange(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)
    )


def _with_offer(fate: Action, offers: Mapping[NodeName, Offer]) -> list[Action]:
    """Give a new node its offer. Without one, what is broken still ends, and nothing is created."""
    if fate.kind not in {ActionKind.CREATE, ActionKind.REPLACE}:
        return [fate]
    offer = offers.get(fate.node)
    if offer is not None:
        return [replace(fate, offer=offer, provider=offer.provider, usd_per_hour=offer.usd_per_hour)]
    if fate.kind is ActionKind.CREATE:
        return []
    return [replace(fate, kind=ActionKind.TERMINATE, reason=f"{fate.reason}; no offer replaces it")]


def _ends(desired: Desired, observed: Observed, staying: set[tuple[str, str]]) -> list[Action]:
    """Drain and terminate every rental that stands for no wanted node."""
    actions: list[Action] = []
    for node in observed.nodes:
        if _identity(node) in staying:
            continue
        end = Action(
            ActionKind.TERMINATE,
            node.node,
            _role(desired.fleet, node.node),
            node.provider,
            _reason_to_end(desired, node),
            instance_id=node.instance_id,
            usd_per_hour=node.usd_per_hour,
        )
        if _serves(node) and not desired.wants(node.node) and node.node not in observed.drained:
            actions.append(replace(end, kind=ActionKind.DRAIN))
        actions.append(end)
    return actions


def _identity(node: ObservedNode) -> tuple[str, str]:
    return (node.provider, node.instance_id)


def _serves(node: ObservedNode) -> bool:
    usable = node.state not in _LOST and not node.duplicate and not node.ending
    return usable and node.serving is Serving.READY


def _reason_to_end(desired: Desired, node: ObservedNode) -> str:
    if node.ending:
        return "its end was decided before"
    if node.duplicate:
        return "a second instance of one create call"
    if desired.wants(node.node):
        return "another rental stands for this node"
    if node.node.pool not in desired.fleet.pools:
        return f"the file has no pool {node.node.pool}"
    return "not wanted any more"


def _role(fleet: Fleet, node: NodeName) -> Role | None:
    return fleet.role_of(node.pool) if node.pool in fleet.pools else None


def _regions_in_use(fates: Sequence[Action], chosen: Mapping[NodeName, ObservedNode]) -> dict[str, frozenset[str]]:
    regions: dict[str, set[str]] = {}
    for fate in fates:
        if fate.kind in {ActionKind.KEEP, ActionKind.UPDATE} and chosen[fate.node].region:
            regions.setdefault(fate.provider, set()).add(chosen[fate.node].region)
    return {provider: frozenset(found) for provider, found in regions.items()}


def _with_times(desired: Desired, actions: Sequence[Action]) -> list[Action]:
    """When each node is ready. Decode nodes copy the weights that the first of them converts, so none is before it."""
    first = min(filter(_decodes, actions), key=lambda action: _rank(desired.fleet, action)[1:], default=None)
    floor = _own_seconds(desired, first) if first is not None else 0.0
    return [replace(action, seconds_to_ready=_seconds(desired, action, floor)) for action in actions]


def _decodes(action: Action) -> bool:
    return action.role is Role.DECODE and action.kind in WANTED_KINDS


def _seconds(desired: Desired, action: Action, floor: float) -> float:
    own = _own_seconds(desired, action)
    return max(own, floor) if own and _decodes(action) else own


def _own_seconds(desired: Desired, action: Action) -> float:
    if action.kind not in {ActionKind.CREATE, ActionKind.REPLACE, ActionKind.UPDATE}:
        return 0.0
    boot = action.offer.boot_seconds if action.offer else 0.0
    return (boot + desired.durations.get(action.node, 0.0)) / desired.time_scale


def _cost(actions: Sequence[Action]) -> Decimal:
    return sum((action.usd_per_hour for action in actions if action.kind in WANTED_KINDS), Decimal(0))


def _bills_now(nodes: Sequence[ObservedNode]) -> Decimal:
    return sum((node.usd_per_hour for node in nodes if node.state.may_bill), Decimal(0))


def _rank(fleet: Fleet, action: Action) -> tuple[int, int, NodeName, str]:
    pools = list(fleet.pools)
    pool = action.node.pool
    place_in_file = pools.index(pool) if pool in pools else len(pools)
    return (_ORDER.index(action.kind), place_in_file, action.node, action.instance_id or "")


def _distance_problems(
    desired: Desired, actions: Sequence[Action], chosen: Mapping[NodeName, ObservedNode]
) -> tuple[str, ...]:
    if desired.fleet.network.rdma != "required":
        return ()
    sites = {
        (action.provider, action.offer.region if action.offer else chosen[action.node].region)
        for action in actions
        if action.kind in WANTED_KINDS
    }
    if len(sites) < 2:
        return ()
    told = ", ".join(f"{provider} {region}".strip() for provider, region in sorted(sites))
    return (f"network.rdma is required, but the nodes would stand in {len(sites)} places ({told})",)


def _cluster_problems(observed: Observed, actions: Sequence[Action]) -> Iterator[str]:
    """A cluster ends as a whole: none of its nodes may end while another one is to stay."""
    kept = {action.instance_id for action in actions if action.kind in {ActionKind.KEEP, ActionKind.UPDATE}}
    clusters = sorted({node.cluster_id for node in observed.nodes if node.cluster_id and not node.ending})
    for cluster in clusters:
        members = [node for node in observed.nodes if node.cluster_id == cluster]
        ending = [node.node for node in members if node.instance_id not in kept]
        staying = [node.node for node in members if node.instance_id in kept]
        if ending and staying:
            told = ", ".join(map(str, sorted(ending)))
            yield (
                f"{told} would end, and {len(staying)} other nodes of the same cluster with it; "
                "a cluster is replaced as a whole: gpufleet down, then up"
            )


def _spends(actions: Sequence[Action]) -> bool:
    """Whether there is anything to refuse: to end something, or to leave all as it is, is always allowed."""
    return any(action.kind in WANTED_KINDS and action.kind is not ActionKind.KEEP for action in actions)


def _budget_problems(desired: Desired, observed: Observed, after: Decimal, seconds: float) -> tuple[str, ...]:
    """Limits that the plan would break."""
    budget = desired.fleet.budget
    problems: list[str] = []
    wanted = len(desired.nodes())
    if budget.max_nodes is not None and wanted > budget.max_nodes:
        problems.append(f"the file asks for {wanted} nodes, and budget.max_nodes is {budget.max_nodes}")
    if budget.max_usd_per_hour is not None and after > budget.max_usd_per_hour:
        problems.append(
            f"the fleet would cost {usd_per_hour(after)}, over budget.max_usd_per_hour {usd(budget.max_usd_per_hour)}"
        )
    at_ready = observed.spent_usd + after * Decimal(seconds) / 3600
    if budget.max_usd_total is not None and at_ready >= budget.max_usd_total:
        problems.append(
            f"{usd(observed.spent_usd)} are spent and {usd(at_ready)} would be once it is ready, "
            f"over budget.max_usd_total {usd(budget.max_usd_total)}"
        )
    today = observed.spent_today_usd + after * Decimal(seconds) / 3600
    if budget.max_usd_per_day is not None and today >= budget.max_usd_per_day:
        problems.append(
            f"{usd(observed.spent_today_usd)} are spent today and {usd(today)} would be once it is ready, "
            f"over budget.max_usd_per_day {usd(budget.max_usd_per_day)}"
        )
    return tuple(problems)
