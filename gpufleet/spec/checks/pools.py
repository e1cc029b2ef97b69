"""Roles, and how many nodes of one role another one needs."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.domain.nodes import Role
from gpufleet.spec.feeding import feeding
from gpufleet.spec.model import Fleet
from gpufleet.spec.problems import Problem, did_you_mean

_ROLES = ", ".join(Role)


def check_roles(fleet: Fleet) -> list[Problem]:
    """Pools whose role nobody can tell."""
    return [
        Problem(
            f"pools.{name} has no role, and its name is none{did_you_mean(name, Role)}",
            loc=("pools", name),
            hint=f"add 'role:' with one of {_ROLES}",
        )
        for name, pool in fleet.pools.items()
        if pool.role is None and name not in set(Role)
    ]


def check_pools(fleet: Fleet) -> Iterator[Problem]:
    """Decode and native nodes need prefill nodes to feed them."""
    counts = {role: len(fleet.nodes_of(role)) for role in Role}
    for role in (Role.DECODE, Role.NATIVE):
        if counts[role] and not counts[Role.PREFILL]:
            yield Problem(
                f"{counts[role]} {role} nodes and no prefill node: nothing would compute their KV cache",
                loc=_count_of(fleet, role),
                hint="add a prefill pool with a count of at least 1",
            )
            return
    yield from _gates(fleet)
    if len(feeding(fleet)) < counts[Role.DECODE]:
        yield Problem(
            f"{counts[Role.DECODE]} decode nodes need as many prefill nodes, and there are {counts[Role.PREFILL]}: "
            "TileRT's prefill connector has one staging buffer per rank, so without a gate a prefill node feeds one "
            "decode node",
            loc=_count_of(fleet, Role.DECODE),
            hint="set gate: on in the prefill pool, set the decode count to at most "
            f"{counts[Role.PREFILL]}, or add prefill nodes",
        )


def _gates(fleet: Fleet) -> Iterator[Problem]:
    for name, pool in fleet.pools.items():
        if pool.gate and fleet.role_of(name) is not Role.PREFILL:
            yield Problem(
                f"pools.{name}.gate: the KV gate stands before vLLM on prefill nodes, and this is a "
                f"{fleet.role_of(name)} pool",
                loc=("pools", name, "gate"),
                hint="set it in the prefill pool",
            )


def _count_of(fleet: Fleet, role: Role) -> tuple[str, ...]:
    """Where the last nodes of a role are asked for."""
    name = [name for name in fleet.pools_of(role) if fleet.pools[name].count][-1]
    return ("pools", name, "count")
