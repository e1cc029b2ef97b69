"""The ``rest:`` section of a provider file, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from gpufleet.errors import InvalidFleet
from gpufleet.providers.rest.description import Description


def check_description(section: Mapping[str, Any], *, name: str) -> Description:
    """A checked description.

    Raises:
        InvalidFleet: names the first wrong key.
    """
    try:
        return Description.model_validate(section)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        raise InvalidFleet(
            f"provider file {name}: rest.{path}: {first['msg'].removeprefix('Value error, ')}",
            where=f"provider {name}",
            hint="see docs/providers.md",
        ) from None
