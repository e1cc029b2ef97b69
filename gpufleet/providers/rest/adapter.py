"""``kind: rest``: a ``rest:`` section opened as a provider that has just the abilities that it describes."""

from __future__ import annotations

from gpufleet.providers.adapter import Adapter, Place
from gpufleet.providers.rest.abilities import WithClusters, WithExtras, WithKeys
from gpufleet.providers.rest.description import Description
from gpufleet.providers.rest.loading import check_description
from gpufleet.providers.rest.options import RestOptions
from gpufleet.providers.rest.provider import RestProvider


def open_rest(options: RestOptions, place: Place) -> RestProvider:
    """The provider of a file with a ``rest:`` section.

    Raises:
        InvalidFleet: the section is wrong, or an option is missing.
    """
    description = check_description(place.description, name=place.name)
    return class_for(description)(place.name, description, options, place)


def class_for(description: Description, base: type[RestProvider] = RestProvider) -> type[RestProvider]:
    """The class with just the abilities that a description has; the engine finds them by type."""
    keys = description.ssh_keys
    parts: list[type[RestProvider]] = []
    if description.clusters:
        parts.append(WithClusters)
    if description.extras or (keys and keys.delete):
        parts.append(WithExtras)
    if keys:
        parts.append(WithKeys)
    own = () if base is RestProvider and parts else (base,)
    return type(base.__name__, (*own, *parts), {})


ADAPTER = Adapter(RestOptions, open_rest)
