"""`dump_fleet`: a fleet -> the YAML that loads back as an equal fleet."""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from typing import Any

import yaml

from gpufleet.spec.document import resolve
from gpufleet.spec.model import Fleet

_WIDE = 1_000_000
"""Never fold a line: folding would change text that holds runs of spaces."""


def dump_fleet(fleet: Fleet) -> str:
    """Only what differs from the defaults, in the model's order; secrets stay references, money plain numbers.

    Free sections (provider options, ``lock``) may hold text, numbers, booleans, None, lists and dicts.
    """
    data = fleet.model_dump(by_alias=True, exclude_defaults=True)
    data["provider"] = _short(data["provider"])
    for pool in data["pools"].values():
        if "provider" in pool:
            pool["provider"] = _short(pool["provider"])
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDE)
    return text


def _short(use: dict[str, Any]) -> Any:
    """``mock`` for ``{use: mock}``."""
    return use["use"] if set(use) == {"use"} else use


class _Dumper(yaml.SafeDumper):
    """SafeDumper that knows our value types, and quotes text that `resolve` would take for something else."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's hook
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    quoted = "'" if resolve(value) != value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=quoted)


def _money(dumper: yaml.SafeDumper, value: Decimal) -> yaml.ScalarNode:
    text = f"{value:f}"
    return dumper.represent_scalar(f"tag:yaml.org,2002:{'float' if '.' in text else 'int'}", text)


_Dumper.add_representer(str, _text)
_Dumper.add_multi_representer(StrEnum, lambda dumper, value: _text(dumper, value.value))
_Dumper.add_representer(Decimal, _money)
