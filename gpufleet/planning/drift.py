"""What has moved since the last `up` wrote its record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpufleet.domain.nodes import NodeName
from gpufleet.planning.model import FieldChange
from gpufleet.planning.planner import field_changes

Facts = Mapping[NodeName, Mapping[str, str]]


def drift(
    lock: Mapping[str, Any] | None, settings: Facts, fingerprints: Facts | None = None
) -> tuple[FieldChange, ...]:
    """Compare the record with what the file asks for now, and with what nodes say of themselves.

    Args:
        lock: the ``lock`` section of the record: ``nodes`` maps ``decode/0`` to ``settings`` and ``fingerprint``,
            both flat. None (never brought up) drifts from nothing.
        settings: what the file asks for, per node.
        fingerprints: what was observed; nodes that were not looked at are not compared.

    Returns:
        Changes whose field is ``decode/0``, ``decode/0.settings.FIELD`` or ``decode/0.fingerprint.FIELD``.
    """
    if lock is None:
        return ()
    recorded: Mapping[str, Mapping[str, Any]] = lock.get("nodes") or {}
    wanted = {str(node): values for node, values in settings.items()}
    seen = {str(node): values for node, values in (fingerprints or {}).items()}
    changes: list[FieldChange] = []
    for node in sorted(recorded.keys() | wanted.keys(), key=_in_order):
        if node not in wanted:
            changes.append(FieldChange(node, "recorded", None))
        elif node not in recorded:
            changes.append(FieldChange(node, None, "asked for"))
        else:
            changes += _node_drift(node, recorded[node], wanted[node], seen.get(node))
    return tuple(changes)


def _node_drift(
    node: str, recorded: Mapping[str, Any], wanted: Mapping[str, str], seen: Mapping[str, str] | None
) -> list[FieldChange]:
    changes = _under(f"{node}.settings", _flat(recorded.get("settings")), wanted)
    if seen is not None:
        changes += _under(f"{node}.fingerprint", _flat(recorded.get("fingerprint")), seen)
    return changes


def _under(prefix: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[FieldChange]:
    return [
        FieldChange(f"{prefix}.{change.field}", change.before, change.after) for change in field_changes(before, after)
    ]


def _flat(values: Mapping[str, Any] | None) -> dict[str, str]:
    """YAML turns ``8`` into a number on the way through the file."""
    return {str(name): str(value) for name, value in (values or {}).items()}


def _in_order(node: str) -> tuple[str, int, str]:
    pool, _, index = node.partition("/")
    return (pool, int(index) if index.isdecimal() else -1, node)
