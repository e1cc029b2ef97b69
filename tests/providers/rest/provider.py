"""A small described provider, for tests of the core itself."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import respx

from gpufleet.providers.adapter import Place
from gpufleet.providers.rest.adapter import open_rest
from gpufleet.providers.rest.options import RestOptions
from gpufleet.providers.rest.provider import RestProvider

URL = "https://api.example.com/v1"
SECRET = "s3cr3t-that-must-not-show"

DESCRIPTION: dict[str, Any] = {
    "base_url": URL,
    "capabilities": {"ownership": "name"},
    "offers": {
        "request": {"path": "/offers"},
        "items": "offers",
        "price": {"amount": "item.price", "per": "node", "unit": "usd"},
        "fields": {
            "offer_id": "item.id",
            "gpu": "gpu_model(item.gpu)",
            "gpu_count": "item.count",
            "region": "item.region",
        },
    },
    "create": {
        "request": {
            "method": "POST",
            "path": "/instances",
            "body": {"offer": "=offer.offer_id", "name": "=request.key"},
        },
        "id": "body.id",
        "ids_in_errors": "body.id",
    },
    "get": {"request": {"path": "/instances/{instance_id}"}},
    "list": {"request": {"path": "/instances"}, "items": "instances"},
    "terminate": {"request": {"method": "DELETE", "path": "/instances/{instance_id}"}},
    "instance": {
        "fields": {"id": "item.id", "name": "item.name", "state": "item.state"},
        "states": {"up": "running", "gone": "terminated"},
    },
    "errors": {"code": "code"},
}
OFFER = {"id": "o-1", "price": 24.5, "gpu": "NVIDIA H200", "count": 8, "region": "eu"}


def described(**changes: Any) -> dict[str, Any]:
    """The description with dotted keys set: ``described(**{"list.items": "rows"})``."""
    made = copy.deepcopy(DESCRIPTION)
    for path, value in changes.items():
        *folders, last = path.split(".")
        section = made
        for folder in folders:
            section = section.setdefault(folder, {})
        section[last] = value
    return made


@contextmanager
def opened(folder: Path, **changes: Any) -> Iterator[tuple[RestProvider, respx.MockRouter]]:
    secret = folder / "key"
    secret.write_text(SECRET)
    options = RestOptions.model_validate({"key": f"file:{secret}"})
    place = Place("example", folder, folder, described(**changes), "for tests")
    with respx.mock(assert_all_called=False) as router:
        yield open_rest(options, place), router
