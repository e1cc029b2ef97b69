"""Short ways to say what is wanted, what is offered and what is there."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from gpufleet.domain.market import GpuShape, InstanceState, Offer
from gpufleet.domain.nodes import NodeName
from gpufleet.domain.status import Serving
from gpufleet.planning.model import ActionKind, Desired, Observed, ObservedNode, Plan, desired_up
from gpufleet.spec.model import Fleet

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
H200 = GpuShape("H200", 8)
B200 = GpuShape("B200", 8)
SHAPES = {"prefill": H200, "decode": B200, "native": H200}


def fleet(prefill: int = 1, decode: int = 1, native: int = 0, **more: Any) -> Fleet:
    counts = {"prefill": prefill, "decode": decode, "native": native}
    pools: dict[str, dict[str, Any]] = {
        name: {"gpu": str(SHAPES[name]), "count": count} for name, count in counts.items()
    }
    for name, values in more.pop("pools", {}).items():
        pools.setdefault(name, {}).update(values)
    router = {"channels": {"chat": {"class": "interactive", "key": "env:K"}}}
    return Fleet.model_validate({"name": "f", "provider": "mock", "pools": pools, "router": router, **more})


def offer(
    gpu: GpuShape = H200, price: str = "30", region: str = "east", *, stock: int | None = None, **more: Any
) -> Offer:
    offer_id = more.pop("offer_id", f"{gpu.model}-{region}-{price}".lower())
    return Offer("mock", offer_id, gpu, 141, Decimal(price), region, stock=stock, boot_seconds=180, **more)


def market(*offers: Offer) -> dict[str, list[Offer]]:
    return {name: [o for o in offers if o.gpu == shape] for name, shape in SHAPES.items()}


ENOUGH = market(offer(H200, "30"), offer(B200, "40"))


def settings(node: NodeName) -> dict[str, str]:
    return {"model": "glm", "gpu": str(SHAPES.get(node.pool, H200)), "tp": "8"}


def want(wanted: Fleet, **more: Any) -> Desired:
    nodes = wanted.nodes()
    return desired_up(wanted, settings={n: settings(n) for n in nodes}, durations=dict.fromkeys(nodes, 100.0), **more)


def node(name: str, **more: Any) -> ObservedNode:
    where = NodeName.parse(name)
    values: dict[str, Any] = {
        "node": where,
        "provider": "mock",
        "instance_id": f"i-{where.slug}",
        "usd_per_hour": Decimal(30),
        "gpu": SHAPES.get(where.pool, H200),
        "region": "east",
        "state": InstanceState.RUNNING,
        "serving": Serving.READY,
        "settings": settings(where),
        "key": f"gf-f-{where.slug}",
    }
    return ObservedNode(**{**values, **more})


def steps(made: Plan) -> list[str]:
    return [f"{action.kind} {action.node}" for action in made.actions]


def carry_out(made: Plan, desired: Desired, observed: Observed) -> Observed:
    """What is there once a plan has been carried out without a hitch."""
    ended = {a.instance_id for a in made.actions if a.kind in {ActionKind.TERMINATE, ActionKind.REPLACE}}
    updated = {a.instance_id for a in made.of(ActionKind.UPDATE)}
    nodes = [n for n in observed.nodes if n.instance_id not in ended | updated]
    for old in observed.nodes:
        if old.instance_id in updated:
            nodes.append(node(str(old.node), **{**vars(old), **_up(desired, old.node)}))
    for number, action in enumerate(made.of(ActionKind.CREATE) + made.of(ActionKind.REPLACE)):
        assert action.offer is not None
        rented = {
            "provider": action.offer.provider,
            "instance_id": f"new-{number}-{action.node.slug}",
            "usd_per_hour": action.offer.usd_per_hour,
            "gpu": action.offer.gpu,
            "region": action.offer.region,
        }
        nodes.append(node(str(action.node), **rented, **_up(desired, action.node)))
    return Observed(nodes, {}, observed.pending_usd_per_hour, observed.spent_usd)


def _up(desired: Desired, name: NodeName) -> dict[str, Any]:
    return {"state": InstanceState.RUNNING, "serving": Serving.READY, "settings": desired.settings[name]}
