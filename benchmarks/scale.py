"""How planning, a look at everything, and memory grow: 10, 100 and 1,000 nodes.

Seconds depend on the machine's mood; calls to the provider and ledger transactions are counted exactly. Limits:
planning 0.3 s and a tick with nothing to do 1 s at 1,000 nodes; a look and a reconcile without news make the one list
call, read nothing by id and write nothing; peak memory of the process 150 MB. Ends with 1 when one is broken.

    python benchmarks/scale.py [10 100 1000]
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from gpufleet.domain.market import GpuShape, Instance, InstanceState, Inventory, Offer, OfferQuery, SshEndpoint
from gpufleet.domain.status import Serving
from gpufleet.engine.api import make_plan
from gpufleet.engine.observe import desired, observed
from gpufleet.engine.reconcile import audit
from gpufleet.engine.refresh import refresh
from gpufleet.engine.session import Session, open_session
from gpufleet.engine.tick import Ticked, tick
from gpufleet.ledger.database import Database
from gpufleet.ledger.records import Intent
from gpufleet.planning.matching import cheapest_match
from gpufleet.planning.planner import plan
from gpufleet.providers.base import Account, Capabilities, Ownership
from gpufleet.serving.settings import fleet_settings

H200, B200 = GpuShape("H200", 8), GpuShape("B200", 8)
NOW = datetime.now(UTC)
SIZES = (10, 100, 1000)
PLAN_SECONDS, TICK_SECONDS, PEAK_MB = 0.3, 1.0, 150


class Market:
    """A provider in memory that counts its calls."""

    name = "mock"
    caps = Capabilities(ownership=Ownership.NAME, settle_seconds=0.0)

    def __init__(self) -> None:
        self.instances: list[Instance] = []
        self.calls: Counter[str] = Counter()

    def whoami(self) -> Account:
        self.calls["whoami"] += 1
        return Account("acct")

    def offers(self, query: OfferQuery) -> list[Offer]:
        self.calls["offers"] += 1
        made = [
            Offer("mock", f"{gpu.model}-{region}-{n}", gpu, 141, Decimal(20 + n), region, stock=700)
            for gpu in (H200, B200)
            for region in ("east", "west")
            for n in range(5)
        ]
        return [offer for offer in made if query.gpu in {None, offer.gpu}]

    def inventory(self) -> Inventory:
        self.calls["inventory"] += 1
        return Inventory("acct", tuple(self.instances))

    def get(self, instance_id: str) -> Instance:
        self.calls["get"] += 1
        return next(i for i in self.instances if i.instance_id == instance_id)


def fleet_file(folder: Path, nodes: int, provider: Any = "mock") -> Path:
    half = nodes // 2
    pools = {"prefill": {"gpu": "H200:8", "count": half}, "decode": {"gpu": "B200:8", "count": half}}
    channels = {"chat": {"class": "interactive", "key": "env:K"}}
    path = folder / "fleet.yaml"
    router = {"channels": channels, "without_max_tokens": "tilert"}
    path.write_text(yaml.safe_dump({"name": "big", "provider": provider, "pools": pools, "router": router}))
    return path


def rented(session: Session, market: Market) -> None:
    """Every node of the file, as if `up` had rented it."""
    session.store.owner_id()
    for number, node in enumerate(session.fleet.nodes()):
        gpu = session.fleet.pools[node.pool].gpu
        key = f"gf-big-{number}"
        session.store.open_intent(Intent(key, "big", node, "mock", "acct", "o", gpu, Decimal(20), Decimal(20), "east"))
        session.store.mark_sent(key)
        made = Instance(
            "mock", f"i-{number}", key, InstanceState.RUNNING, "running", Decimal(20), gpu, "east",
            SshEndpoint(f"10.0.{number // 250}.{number % 250}"), created_at=NOW,
        )  # fmt: skip
        session.store.record_rental(key, made)
        market.instances.append(made)


def serving(session: Session) -> None:
    """All of them serve as the file says, and the fleet is to run."""
    session.store.save_fleet("big", session.loaded.text, str(session.path))
    session.store.set_running("big", running=True)
    settings = fleet_settings(session.fleet)
    for rental in session.store.rentals("big"):
        session.store.set_serving(
            rental.provider, rental.instance_id, Serving.READY, settings=settings[rental.node]
        )  # fmt: skip


def seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def counted() -> Counter[str]:
    """Counts ledger transactions from here on."""
    seen: Counter[str] = Counter()
    for kind in ("read", "write"):
        setattr(Database, kind, _noting(getattr(Database, kind), seen, f"ledger {kind}s"))
    return seen


def _noting(original: Any, seen: Counter[str], name: str) -> Any:
    def noted(self: Database) -> Any:
        seen[name] += 1
        return original(self)

    return noted


def scarce(nodes: int) -> float:
    """Two pools that share a market of single machines: thrice as many offers as nodes, a quarter of them for both."""
    prices = (Decimal(2000 + n * 7919 % 1000) / 100 for n in range(nodes * 3))
    offers = [Offer("mock", f"{n}", H200, 141, price, "east", stock=1) for n, price in enumerate(prices)]
    needs = {"prefill": nodes // 2, "native": nodes // 2}
    return seconds(lambda: cheapest_match(needs, {"prefill": offers, "native": offers[::4]}))


def whole_plan(nodes: int) -> float:
    """`gpufleet plan` as a user starts it, on a market of its own."""
    with tempfile.TemporaryDirectory() as folder:
        stock = dict.fromkeys(("h200x8-east", "b200x8-east"), nodes)
        file = fleet_file(Path(folder), nodes, {"use": "mock", "directory": "market", "stock": stock})
        command = [sys.executable, "-m", "gpufleet", "plan", str(file), "--output", "json"]
        env = {**os.environ, "GPUFLEET_STATE": f"{folder}/s", "K": "key"}
        return min(seconds(lambda: subprocess.run(command, env=env, check=True, capture_output=True)) for _ in range(3))


def measure(nodes: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        os.environ["K"] = "key"
        with open_session(fleet_file(root, nodes), state_dir=root / "s") as session:
            market = Market()
            session._providers["mock"] = market  # type: ignore[assignment]
            session._options["mock"] = {}
            goal, now = desired(session), observed(session)
            fresh = min(seconds(lambda: plan(goal, now, NOW)) for _ in range(3))
            rented(session, market)
            refresh(session)
            market.calls.clear()
            transactions = counted()
            looked = seconds(lambda: refresh(session))
            look = {**market.calls, **transactions}
            market.calls.clear()
            transactions.clear()
            reconciled = seconds(lambda: audit(session))
            reconcile = {**market.calls, **transactions}
            kept = observed(session)
            again = min(seconds(lambda: plan(goal, kept, NOW)) for _ in range(3))
            made = seconds(lambda: make_plan(session))
            serving(session)
            market.calls.clear()
            transactions.clear()
            done: list[Ticked] = []
            ticked = seconds(lambda: done.append(tick(session)))
            ticks = {**market.calls, **transactions}
            assert done[0].quiet, done
    return {
        "nodes": nodes,
        "plan from nothing": fresh,
        "plan with all there": again,
        "sharing a scarce market": scarce(nodes),
        "make_plan with all there, ledger and listing read": made,
        "a look without news": looked,
        "its calls": look,
        "reconcile without news": reconciled,
        "reconcile's calls": reconcile,
        "tick with nothing to do": ticked,
        "tick's calls": ticks,
        "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "gpufleet plan, the process": whole_plan(nodes),
    }


def broken_limits(figures: dict[str, Any]) -> list[str]:
    """What is worse than it may be."""
    slow = [name for name in ("plan from nothing", "plan with all there") if figures[name] > PLAN_SECONDS]
    slow += ["tick with nothing to do"] if figures["tick with nothing to do"] > TICK_SECONDS else []
    heavy = ["peak MB"] if figures["peak MB"] > PEAK_MB else []
    called = [
        f"{name}: {figures[name]}"
        for name in ("its calls", "reconcile's calls")
        if figures[name].get("inventory") != 1 or figures[name].get("get") or figures[name].get("ledger writes")
    ]
    return [f"{figures['nodes']} nodes: {what}" for what in (*slow, *heavy, *called)]


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(int(sys.argv[2]))))
        return
    broken: list[str] = []
    for size in [int(word) for word in sys.argv[1:]] or SIZES:
        command = [sys.executable, __file__, "--one", str(size)]
        figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"{figures['nodes']} nodes")
        for name, value in figures.items():
            print(f"  {name:50} {f'{value:.3f}' if isinstance(value, float) else value}")
        broken += broken_limits(figures)
    print("\n".join(broken) or "within the limits")
    raise SystemExit(bool(broken))


if __name__ == "__main__":
    main()
