"""A fleet of one prefill and one native node for a batch channel: it comes up fast, and its faults are those of any."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

from gpufleet.providers.mock import billing
from tests.e2e.world import World, free_port, world


def batch_fleet(faults: list[dict[str, Any]], **provider: Any) -> dict[str, Any]:
    """The fleet file's content."""
    return {
        "name": "test",
        "provider": {"use": "mock", "time_scale": 20000, "seed": 1, "faults": faults, **provider},
        "pools": {"prefill": {"gpu": "H200:8", "count": 1}, "native": {"gpu": "H200:8", "count": 1}},
        "router": {
            "listen": f"127.0.0.1:{free_port()}",
            "channels": {"batch": {"class": "batch", "key": "env:GF_TEST_BATCH"}},
        },
    }


@contextmanager
def small(root: Path, network: str, *faults: dict[str, Any], **provider: Any) -> Iterator[World]:
    """A world with such a fleet, not up yet."""
    with world(root, network, batch_fleet(list(faults), **provider)) as made:
        yield made


def fault(at: str, kind: str, node: str | None = None, **more: Any) -> dict[str, Any]:
    return {"at": at, "kind": kind, **({"node": node} if node else {}), **more}


def running(made: World) -> list[billing.Charge]:
    """What the market bills now."""
    return [charge for charge in billing.read(made.market) if charge.ended is None]


def assert_down_and_even(made: World) -> None:
    """``down`` works, nothing runs, and both bills agree to the cent and below."""
    bill = made.json("down", "--yes")["bill"]
    charges = billing.read(made.market)
    assert all(charge.ended is not None for charge in charges)
    ours = {line["instance_id"]: Decimal(line["usd"]) for line in bill["lines"]}
    assert ours == {charge.instance_id: charge.usd for charge in charges}
    assert made.processes() == []
