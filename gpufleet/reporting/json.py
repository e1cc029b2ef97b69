"""Values as JSON: what ``--output json`` prints.

Money is text so that no digit is lost (``"41.50"``), times are ISO 8601 in UTC with a ``Z``, nodes are ``"decode/0"``,
unknown is null. Keys are the field names of the types in `gpufleet.domain`, which name their unit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

from gpufleet.domain.market import GpuShape
from gpufleet.domain.nodes import NodeName
from gpufleet.domain.status import Bill, FleetStatus


def to_json(value: Any) -> Any:
    """A value made of dataclasses, mappings, sequences, money, times, enums and names, as plain JSON values.

    Raises:
        TypeError: for a type that has no agreed form, so that none slips out by its ``repr``.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if (scalar := _scalar(value)) is not None:
        return scalar
    if isinstance(value, Bill):
        return _bill(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in fields(value) if not f.name.startswith("_")}
    return _collection(value)


def dumps(document: Any, *, indent: int | None = 2) -> str:
    """`to_json` as text; ``indent=None`` gives the one-line form of NDJSON streams."""
    return json.dumps(to_json(document), indent=indent, ensure_ascii=False)


def status_document(status: FleetStatus) -> dict[str, Any]:
    """What ``status`` and ``up`` print: the fleet's status with its hourly price on top."""
    return {"fleet": status.fleet, "usd_per_hour": to_json(status.bill.usd_per_hour), **to_json(status)}


def bill_document(fleet: str, bill: Bill) -> dict[str, Any]:
    """What ``down`` prints."""
    return {"fleet": fleet, "bill": _bill(bill)}


def _scalar(value: Any) -> str | None:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, str | NodeName | GpuShape | Path):
        return str(value)
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        return _utc(value)
    return None


def _collection(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(to_json(key)): to_json(item) for key, item in value.items()}
    if isinstance(value, Set):
        return sorted(to_json(item) for item in value)
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    raise TypeError(f"no JSON form for {type(value).__name__}")


def _utc(at: datetime) -> str:
    if at.tzinfo is None:
        raise TypeError("a time without a zone has no JSON form")
    return re.sub(r"\+00:00$", "Z", at.astimezone(UTC).isoformat(timespec="seconds"))


def _bill(bill: Bill) -> dict[str, Any]:
    return {
        "total_usd": to_json(bill.total),
        "usd_per_hour": to_json(bill.usd_per_hour),
        "lines": [to_json(line) for line in bill.lines],
    }
