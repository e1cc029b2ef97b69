"""An engine whose answers a test writes down, for what the command line does around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeVar

from gpufleet.domain.nodes import NodeName, Role
from gpufleet.domain.progress import Progress, ProgressState
from gpufleet.domain.status import Bill, FleetStatus
from gpufleet.planning.model import Action, ActionKind, FieldChange, Plan
from gpufleet.remote.machine import Completed
from tests.reporting.values import NOW, bill, offer, status

T = TypeVar("T")
DECODE = NodeName("decode", 0)


def plan_of(kind: ActionKind = ActionKind.CREATE, *, problems: tuple[str, ...] = ()) -> Plan:
    action = Action(kind, DECODE, Role.DECODE, "mock", "", offer(), "i-1", Decimal("41.50"), (), 9600.0)
    return Plan((action,), Decimal(0), Decimal("41.50"), 9600.0, problems, NOW)


@dataclass
class Engine:
    """Stands where `gpufleet.engine.api` does. ``calls`` tells what was called, in order."""

    plan: Plan = field(default_factory=plan_of)
    fleet_status: FleetStatus = field(default_factory=status)
    fails: dict[str, BaseException] = field(default_factory=dict)
    drifted: tuple[FieldChange, ...] = ()
    progress: tuple[Progress, ...] = ()
    """What `up` tells; when empty what a run over this plan would."""
    calls: list[str] = field(default_factory=list)
    arguments: dict[str, Any] = field(default_factory=dict)

    def check(self, session: Any) -> None:
        self._called("check", None)

    def make_plan(self, session: Any) -> Plan:
        return self._called("make_plan", self.plan)

    def drift(self, session: Any) -> tuple[FieldChange, ...]:
        return self._called("drift", self.drifted)

    def up(self, session: Any, plan: Plan) -> FleetStatus:
        for event in self.progress or _boots(known=bool(plan.of(ActionKind.KEEP))):
            session.sink(event)
        return self._called("up", self.fleet_status)

    def down(self, session: Any) -> Bill:
        return self._called("down", bill())

    def status(self, session: Any, *, live: bool = True) -> FleetStatus:
        return self._called("status live" if live else "status recorded", self.fleet_status)

    def ask(
        self, session: Any, text: str, *, channel: str | None, max_tokens: int, on_text: Callable[[str], None]
    ) -> Any:
        self.arguments = {"text": text, "channel": channel, "max_tokens": max_tokens}
        for piece in ("Hello", " world"):
            on_text(piece)
        return self._called("ask", Answered())

    def node_logs(
        self, session: Any, node: NodeName, *, source: str | None, follow: bool, tail: int
    ) -> Iterator[bytes]:
        self.arguments = {"node": node, "source": source, "follow": follow, "tail": tail}
        return self._called("node_logs", iter([b"one\ntw", b"o\n"]))

    def ssh_command(self, session: Any, node: NodeName) -> list[str]:
        return self._called("ssh_command", ["ssh", "-p", "2222", "root@127.64.0.2"])

    def execute(self, session: Any, nodes: list[NodeName], command: str) -> Iterator[tuple[NodeName, Completed]]:
        self.arguments = {"nodes": nodes, "command": command}
        bad = NodeName("decode", 1)
        results = [(n, Completed(3, "", "err\n") if n == bad else Completed(0, "out\n", "")) for n in nodes]
        return self._called("execute", iter(results))

    def render(self, session: Any, what: str, node: NodeName | None) -> str:
        return self._called("render", f"{what} for {node}")

    def _called(self, name: str, value: T) -> T:
        self.calls.append(name)
        if name in self.fails:
            raise self.fails[name]
        return value


@dataclass(frozen=True)
class Answered:
    """An `Answer` of `gpufleet.routing.client`."""

    served_by: str = "cell-decode-0"
    ttft_s: float = 0.412
    tokens: int = 87
    tokens_per_s: float = 181.26
    finish_reason: str = "stop"
    queue_ms: float | None = 12.0


def _boots(*, known: bool) -> list[Progress]:
    ready = [Progress(DECODE, "ready", ProgressState.DONE), Progress(None, "record", message="fleet.lock.yaml")]
    return ready if known else [Progress(DECODE, "boot"), *ready]


def nothing_rented() -> FleetStatus:
    return FleetStatus("quickstart", (), (), None, Bill(()))
