"""How a mock market is opened: with just the optional abilities that its options ask for."""

from __future__ import annotations

from gpufleet.providers.adapter import Adapter, Place
from gpufleet.providers.mock import catalog
from gpufleet.providers.mock.abilities import WithClusters, WithExtras, WithKeys
from gpufleet.providers.mock.options import MockOptions
from gpufleet.providers.mock.provider import MockProvider
from gpufleet.providers.mock.renting import Counter


def open_mock(options: MockOptions, place: Place) -> MockProvider:
    """Open the market that the options name; it comes into being with the first call.

    Raises:
        InvalidFleet: the catalog is missing or wrong.
    """
    base = place.fleet_dir
    directory = (base / options.directory if options.directory else place.state_dir / "mock").resolve()
    listings = catalog.load(base / options.catalog if options.catalog else catalog.SHIPPED)
    sold = {name: listing for name, listing in listings.items() if options.clusters or listing.cluster is None}
    counter = Counter(place.name, directory, options, sold)
    return _class_for(options)(place.name, directory, options, counter)


def _class_for(options: MockOptions) -> type[MockProvider]:
    """The engine finds abilities by type, so a market that lacks one must not have its methods."""
    parts: list[type[MockProvider]] = []
    if options.clusters:
        parts.append(WithClusters)
    if options.volumes or options.ssh_keys:
        parts.append(WithExtras)
    if options.ssh_keys:
        parts.append(WithKeys)
    return type("MockProvider", tuple(parts), {}) if parts else MockProvider


ADAPTER = Adapter(MockOptions, open_mock)
