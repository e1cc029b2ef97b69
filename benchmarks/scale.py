"""How planning, a look at everything, and memory grow: 10, 100 and 1,000 nodes.

Counts what depends on the machine's mood in seconds, and what does not (calls to the provider, write transactions)
exactly. Limits: planning 0.3 s at 1,000 nodes; a look with no news makes only the list calls that paging needs, none by
id, and no write; peak memory of the process 150 MB.

    python benchmarks/scale.py [10 100 1000]
"""

from __future__ import annotations

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
from gpufleet.engine.observe import desired, observed
from gpufleet.engine.refresh import refresh
from gpufleet.engine.session import Session, open_session
from gpufleet.ledger.database import Database
from gpufleet.ledger.records import Intent
from gpufleet.planning.planner import plan
from gpufleet.providers.base import Account, Capabilities, Ownership

H200, B200 = GpuShape("H200", 8), GpuShape("B200", 8)
NOW = datetime.now(UTC)
SIZES = (10, 100, 1000)


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


def fleet_file(folder: Path, nodes: int) -> Path:
    half = nodes // 2
    pools = {"prefill": {"gpu": "H200:8", "count": half}, "decode": {"gpu": "B200:8", "count": half}}
    channels = {"chat": {"class": "interactive", "key": "env:K"}}
    path = folder / "fleet.yaml"
    router = {"channels": channels, "without_max_tokens": "tilert"}
    path.write_text(yaml.safe_dump({"name": "big", "provider": "mock", "pools": pools, "router": router}))
    return path


def rented(session: Session, market: Market) -> None:
    """Every node of the file, as if `up` had rented it."""
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


def seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(nodes: int) -> str:
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
            writes: Counter[str] = Counter()
            original = Database.write

            def counted(self: Database) -> Any:
                writes["n"] += 1
                return original(self)

            Database.write = counted  # type: ignore[method-assign]
            looked = seconds(lambda: refresh(session))
            Database.write = original  # type: ignore[method-assign]
            calls = dict(market.calls)
            kept = observed(session)
            again = min(seconds(lambda: plan(goal, kept, NOW)) for _ in range(3))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return (
        f"{nodes:>5} nodes: plan from nothing {fresh:.3f} s, plan with all there {again:.3f} s; "
        f"a look without news {looked:.3f} s, calls {calls}, writes {writes['n']}; peak {peak:.0f} MB"
    )


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(measure(int(sys.argv[2])))
        return
    for size in [int(word) for word in sys.argv[1:]] or SIZES:
        subprocess.run([sys.executable, __file__, "--one", str(size)], check=True)


if __name__ == "__main__":
    main()
