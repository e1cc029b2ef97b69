"""Places to rent from, for tests: a mock market whose nodes are plain sleeping processes, and a list of hosts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from gpufleet.domain.market import Instance, InstanceState, Offer, OfferQuery
from gpufleet.domain.nodes import NodeName
from gpufleet.providers.base import CreateRequest, InstallsKeys, Provider
from gpufleet.providers.registry import open_provider
from gpufleet.spec.model import ProviderUse

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJ5IGl0c2VsZiB0aGlzIGtleSBvcGVucyBub3RoaW5n"
SLEEPER = ("/bin/sh", str(Path(__file__).with_name("sleeper.sh")))
"""Stands in for the node's SSH server; has a child, as a real node has."""


@dataclass(frozen=True)
class Place:
    """A provider that can be opened again and again, also by other processes."""

    use: str
    folder: Path
    options: dict[str, Any] = field(default_factory=dict)

    def open(self, **more: Any) -> Provider:
        use = ProviderUse(use=self.use, **{**self.options, **more})
        return open_provider(use, fleet_dir=self.folder, state_dir=self.folder)

    def with_options(self, **more: Any) -> Place:
        return Place(self.use, self.folder, {**self.options, **more})

    def start(self, code: str, *arguments: str) -> subprocess.Popen[str]:
        """Run code in another process; it finds this place as ``place``."""
        head = f"""
import json, sys
from pathlib import Path
from tests.providers.places import *
place = Place({self.use!r}, Path({str(self.folder)!r}), json.loads({json.dumps(self.options)!r}))
"""
        return subprocess.Popen(
            [sys.executable, "-c", head + code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )


def mock_place(folder: Path, **options: Any) -> Place:
    defaults = {"time_scale": 10_000, "network": "127.65.0.0/16", "node_command": list(SLEEPER)}
    return Place("mock", folder, defaults | options)


def market_of(place: Place) -> Path:
    return place.folder / "mock"


def request(offer: Offer, key: str = "gf-test-0-a", node: str = "decode/0", **changes: Any) -> CreateRequest:
    values: dict[str, Any] = {
        "key": key,
        "fleet": "test",
        "node": NodeName.parse(node),
        "offer": offer,
        "max_usd_per_hour": offer.usd_per_hour,
        "ssh_public_key": PUBLIC_KEY,
        "disk_gb": 100,
        "image": "vllm/vllm-openai:v0.26.0",
        "start": "sleep infinity",
    }
    return CreateRequest(**(values | changes))


def make(
    provider: Provider, offer: Offer, key: str = "gf-test-0-a", node: str = "decode/0", **changes: Any
) -> Instance:
    """Rent an offer, with the SSH key put where the provider wants it first."""
    if isinstance(provider, InstallsKeys):
        changes["ssh_key_ref"] = provider.ensure_ssh_key("gf-test", PUBLIC_KEY)
    return provider.create(request(offer, key, node, **changes))


def cheapest(provider: Provider, query: OfferQuery | None = None) -> Offer:
    return singles(provider, query)[0]


def singles(provider: Provider, query: OfferQuery | None = None) -> list[Offer]:
    """Offers that are rented one by one, cheapest first."""
    return [offer for offer in provider.offers(query or OfferQuery()) if offer.cluster is None]


def rent(provider: Provider, key: str = "gf-test-0-a", node: str = "decode/0", **changes: Any) -> Instance:
    return make(provider, cheapest(provider), key, node, **changes)


def eventually(look: Callable[[], Any], *, within: float = 20.0) -> Any:
    """Poll until ``look`` gives something true; returns it."""
    deadline = time.monotonic() + within
    while not (seen := look()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return seen


def in_state(provider: Provider, instance_id: str, *states: InstanceState) -> Instance:
    """Wait until the provider shows one of these states."""

    def look() -> Instance | None:
        instance = provider.get(instance_id)
        return instance if instance.state in states else None

    return eventually(look)


ABOVE = Decimal("0.01")
