"""What an adapter module hands to the registry: its options and how to open it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from gpufleet.errors import InvalidFleet
from gpufleet.providers.base import Provider

_SECRET_LIKE = ("key", "token", "password", "secret")


class Options(BaseModel):
    """Base of every adapter's options: frozen, and an option it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


OptionsT = TypeVar("OptionsT", bound=BaseModel)


@dataclass(frozen=True)
class Place:
    """Where an adapter is opened from."""

    name: str
    """The provider's name in the fleet file; offers and instances carry it."""
    fleet_dir: Path
    """Relative paths in options start here."""
    state_dir: Path
    """Where an adapter may keep files."""
    description: Mapping[str, Any] = field(default_factory=dict)
    """The provider file's ``rest:`` section."""
    verified: str = ""
    """How far the provider file says that it was checked."""


@dataclass(frozen=True)
class Adapter(Generic[OptionsT]):
    """A kind of provider. An entry point of the group ``gpufleet.providers`` names one of these."""

    options: type[OptionsT]
    open: Callable[[OptionsT, Place], Provider]


def read_options(model: type[OptionsT], values: Mapping[str, Any], *, provider: str) -> OptionsT:
    """Check options against the adapter's model.

    Raises:
        InvalidFleet: names the first wrong option and what is allowed; a value that may be a secret is not repeated.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise _invalid(model, error.errors(include_url=False)[0], provider) from None


def _invalid(model: type[BaseModel], first: ErrorDetails, provider: str) -> InvalidFleet:
    where = f"provider {provider}"
    path = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
        known = sorted(model.model_fields)
        close = difflib.get_close_matches(path, known, n=1)
        guess = f"did you mean '{close[0]}'? " if close else ""
        return InvalidFleet(
            f"'{path}' is not an option of provider '{provider}'",
            where=where,
            hint=f"{guess}options are: {', '.join(known)}",
        )
    return InvalidFleet(f"option {path or provider}: {_reason(first)}", where=where)


def _reason(error: ErrorDetails) -> str:
    reason = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        return "there is no such key"
    last = next((part for part in reversed(error["loc"]) if isinstance(part, str)), "")
    value = error["input"]
    if isinstance(value, dict | list) or any(word in last for word in _SECRET_LIKE):
        return reason
    return f"{reason} (found {value!r:.60})"
