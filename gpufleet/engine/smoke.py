"""``smoke``: a whole fleet's life under a name of its own, from plan to bill, whatever happens in between.

The fleet has a fresh name, a short ttl and a port of its own: it touches no other fleet of the file, and providers and
`reap` end it should this process be killed.
"""

from __future__ import annotations

import itertools
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from math import ceil
from pathlib import Path

from gpufleet.domain.progress import ProgressSink
from gpufleet.engine import api, talk
from gpufleet.engine.record import record_path
from gpufleet.engine.session import Session, open_session
from gpufleet.engine.signals import signals_ignored, signals_interrupt
from gpufleet.errors import EndpointFailed, GpufleetError, Interrupted, InvalidFleet
from gpufleet.spec.dump import dump_fleet
from gpufleet.spec.load import parse_fleet
from gpufleet.spec.model import Fleet
from gpufleet.spec.values import split_listen

_NAME_LENGTH = 24
_QUESTION = "Count from one to fifty, in words."
_TOKENS = 128


@dataclass(frozen=True)
class Thresholds:
    """What each channel must reach; None: anything."""

    ttft_ms: float | None = None
    itl_p99_ms: float | None = None
    tokens_per_s: float | None = None


@dataclass(frozen=True)
class Measured:
    """One channel's answer."""

    served_by: str
    ttft_ms: float
    itl_p99_ms: float | None
    """Between pieces of the stream; None when there were fewer than two."""
    tokens_per_s: float | None


@dataclass
class Step:
    """One part of the test: ``plan``, ``up``, ``channel chat``, ``down``."""

    name: str
    seconds: float = 0.0
    failure: str | None = None
    exit_code: int = 0
    """That of the failure's kind, docs/exit-codes.md."""
    measured: Measured | None = None


@dataclass
class SmokeReport:
    """What happened."""

    fleet: str
    steps: list[Step] = field(default_factory=list)
    usd: Decimal | None = None
    """What it cost; None when `down` could not say."""

    @property
    def exit_code(self) -> int:
        """That of the first failure, but what still costs money comes before all."""
        codes = [step.exit_code for step in self.steps if step.exit_code]
        return 6 if 6 in codes else next(iter(codes), 0)


def smoke(
    path: Path, *, thresholds: Thresholds, ttl: timedelta, dry_run: bool, sink: ProgressSink, state: Path | None = None
) -> SmokeReport:
    """Do it. Always takes down what it brought up, also when it is stopped.

    Args:
        dry_run: plan alone; rents nothing.
        ttl: latest end of every rental, should all else fail.

    Raises:
        InvalidFleet: the file is wrong, or its front door is on a node.
    """
    with _session(path, ttl, sink, state) as session:
        report = SmokeReport(session.fleet.name)
        with signals_interrupt():
            try:
                _run(session, report, thresholds, dry_run=dry_run)
            except (KeyboardInterrupt, Interrupted):
                report.steps.append(Step("stopped", failure="stopped by a signal", exit_code=Interrupted.exit_code))
            finally:
                if not dry_run:
                    _take_down(session, report)
        record_path(session.path).unlink(missing_ok=True)
        return report


def derived(fleet: Fleet, ttl: timedelta) -> Fleet:
    """The same fleet under another name, on a free port, without a schedule, and with a deadline.

    Raises:
        InvalidFleet: its front door is on a node.
    """
    if fleet.router.host != "local":
        raise InvalidFleet(
            f"router.host is {fleet.router.host}: a smoke test asks through a router on this machine",
            hint="give CI a fleet file with router.host: local",
        )
    name = f"{fleet.name[: _NAME_LENGTH - 6]}-{secrets.token_hex(2)}x"
    host, _ = split_listen(fleet.router.listen)
    address = f"[{host}]" if ":" in host else host
    budget = fleet.budget.model_copy(update={"ttl": min(ttl, fleet.budget.ttl or ttl)})
    router = fleet.router.model_copy(update={"listen": f"{address}:{_free_port(host)}"})
    return fleet.model_copy(update={"name": name, "budget": budget, "router": router, "schedule": None, "lock": None})


def _free_port(host: str) -> int:
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
        return int(free.getsockname()[1])


@contextmanager
def _session(path: Path, ttl: timedelta, sink: ProgressSink, state: Path | None) -> Iterator[Session]:
    """On a file that exists in the ledger alone: its folder is the real one's, so that references to files hold."""
    with open_session(path, sink=sink, state_dir=state) as session:
        fleet = derived(session.loaded.fleet, ttl)
        session.loaded = parse_fleet(dump_fleet(fleet), path=path.parent / f"{fleet.name}.yaml")
        session.look_again()
        yield session


def _run(session: Session, report: SmokeReport, thresholds: Thresholds, *, dry_run: bool) -> None:
    plan = None
    with _step(report, "plan"):
        if not dry_run:
            api.check(session)
        plan = api.make_plan(session)
        if plan.refusal:
            raise InvalidFleet(plan.refusal)
    if plan is None or plan.refusal or dry_run:
        return
    with _step(report, "up") as up:
        api.up(session, plan)
    if up.failure:
        return
    for name in session.fleet.router.channels:
        with _step(report, f"channel {name}") as step:
            step.measured = _ask(session, name)
            _hold(step.measured, thresholds)


def _take_down(session: Session, report: SmokeReport) -> None:
    with signals_ignored():
        session.stop.clear()
        with _step(report, "down"):
            report.usd = api.down(session).total


@contextmanager
def _step(report: SmokeReport, name: str) -> Iterator[Step]:
    """One part; its failure is noted, and whoever runs it goes on."""
    step, began = Step(name), time.monotonic()
    report.steps.append(step)
    try:
        yield step
    except Interrupted:
        step.failure, step.exit_code = "stopped by a signal", Interrupted.exit_code
        raise
    except GpufleetError as failure:
        step.failure, step.exit_code = failure.message, failure.exit_code
    finally:
        step.seconds = time.monotonic() - began


def _ask(session: Session, channel: str) -> Measured:
    came: list[float] = []
    answer = talk.ask(session, _QUESTION, channel=channel, max_tokens=_TOKENS, on_text=_stamp(came))
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(came))
    p99 = gaps[ceil(len(gaps) * 0.99) - 1] * 1000 if gaps else None
    return Measured(answer.served_by, answer.ttft_s * 1000, p99, answer.tokens_per_s)


def _stamp(came: list[float]) -> Callable[[str], None]:
    return lambda _: came.append(time.monotonic())


def _hold(measured: Measured, thresholds: Thresholds) -> None:
    """Compare; all that is missed is told at once.

    Raises:
        EndpointFailed: a threshold is missed, or what it is about could not be measured.
    """
    pairs = (
        ("ttft", measured.ttft_ms, thresholds.ttft_ms, "ms", 1),
        ("itl p99", measured.itl_p99_ms, thresholds.itl_p99_ms, "ms", 1),
        ("tokens/s", measured.tokens_per_s, thresholds.tokens_per_s, "", -1),
    )
    missed = []
    for name, seen, limit, unit, sign in pairs:
        if limit is None:
            continue
        if seen is None:
            missed.append(f"{name} could not be measured")
        elif sign * (seen - limit) > 0:
            missed.append(
                f"{name} is {seen:.1f}{unit}, {'at most' if sign > 0 else 'at least'} {limit:g}{unit} is asked for"
            )
    if missed:
        raise EndpointFailed("; ".join(missed))
