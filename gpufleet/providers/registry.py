"""From the fleet file's ``provider:`` to an open adapter. The only place that knows adapters by name."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from gpufleet.catalog import shipped
from gpufleet.errors import InvalidFleet
from gpufleet.providers.adapter import Adapter, Place, read_options
from gpufleet.providers.base import Provider
from gpufleet.spec.model import ProviderUse

ENTRY_POINTS = "gpufleet.providers"
"""Entry-point group through which other packages add kinds."""

_BUILT_IN = {
    "mock": "gpufleet.providers.mock.adapter",
    "rest": "gpufleet.providers.rest.adapter",
    "ssh": "gpufleet.providers.ssh.adapter",
}


class ProviderFile(BaseModel):
    """``providers/<name>.yaml``."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: str
    """Which adapter: ``mock``, ``ssh``, ``rest``, or an entry point's name."""
    summary: str = ""
    verified: str = ""
    """How far the file was checked, against what, and when."""
    docs: str = ""
    """Where the provider documents its API."""
    rest: dict[str, Any] = {}
    """The provider's API, for adapters that read it from here (docs/providers.md)."""
    options: dict[str, Any] = {}
    """Defaults; the fleet file's own options win."""


def open_provider(use: ProviderUse, *, fleet_dir: Path, state_dir: Path) -> Provider:
    """The provider that a fleet file names. Talks to nobody yet.

    Args:
        use: the ``provider:`` section.
        fleet_dir: folder of the fleet file; its ``providers/`` is searched first.
        state_dir: folder in which an adapter may keep files.

    Raises:
        InvalidFleet: unknown provider or kind, a broken provider file, or an option that the adapter does not take.
    """
    file = load_provider_file(use.use, fleet_dir=fleet_dir)
    adapter = _adapter(file.kind, provider=use.use)
    options = read_options(adapter.options, {**file.options, **use.options}, provider=use.use)
    return adapter.open(options, Place(use.use, fleet_dir, state_dir, file.rest, file.verified))


def provider_names(fleet_dir: Path) -> list[str]:
    """Every provider that a fleet in this folder may name."""
    return shipped.names("providers", extra_dirs=[fleet_dir / "providers"])


def load_provider_file(name: str, *, fleet_dir: Path) -> ProviderFile:
    """Read ``<name>.yaml``.

    Raises:
        InvalidFleet: no such file, or not a provider file.
    """
    path = shipped.find("providers", name, extra_dirs=[fleet_dir / "providers"])
    try:
        return ProviderFile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidFleet(f"provider file {path.name} cannot be read", where=str(path)) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InvalidFleet(
            f"provider file {path.name}: {key or 'top level'}: {first['msg']}",
            where=str(path),
            hint=f"keys are: {', '.join(ProviderFile.model_fields)}",
        ) from None


def _adapter(kind: str, *, provider: str) -> Adapter[Any]:
    if kind in _BUILT_IN:
        found: Any = import_module(_BUILT_IN[kind]).ADAPTER
    else:
        found = _from_entry_point(kind, provider)
    if not isinstance(found, Adapter):
        raise InvalidFleet(f"kind '{kind}' is not a gpufleet adapter", where=f"provider {provider}")
    return found


def _from_entry_point(kind: str, provider: str) -> Any:
    # Costs tens of milliseconds to import, and only kinds of other packages need it.
    from importlib.metadata import entry_points

    for entry in entry_points(group=ENTRY_POINTS, name=kind):
        return entry.load()
    known = sorted({*_BUILT_IN, *entry_points(group=ENTRY_POINTS).names})
    raise InvalidFleet(
        f"provider '{provider}' is of kind '{kind}', which this gpufleet does not have",
        where=f"provider {provider}",
        hint=f"kinds are: {', '.join(known)}; a package adds one through the entry-point group {ENTRY_POINTS}",
    )
