"""``gpufleet smoke``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli.options import DebugOption, FileOption, FleetArgument, OutputFormat, OutputOption, fleet_file
from gpufleet.errors import UsageError

if TYPE_CHECKING:
    from gpufleet.engine.smoke import SmokeReport, Step


def command(
    fleet: FleetArgument = None,
    *,
    ttft_ms: Annotated[float | None, typer.Option("--ttft-ms", min=0, help="Longest time to first token.")] = None,
    itl_p99_ms: Annotated[
        float | None, typer.Option("--itl-p99-ms", min=0, help="Longest gap between pieces, 99th percentile.")
    ] = None,
    tokens_per_s: Annotated[float | None, typer.Option("--tokens-per-s", min=0, help="Slowest stream.")] = None,
    ttl: Annotated[str, typer.Option("--ttl", metavar="TIME", help="Latest end of every rental.")] = "4h",
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML there.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Validate and plan alone: for pull requests.")] = False,
    file: FileOption = None,
    output: OutputOption = OutputFormat.TEXT,
    _debug: DebugOption = False,
) -> None:
    """For CI: bring a fleet up, ask on every channel, take it down.

    The fleet has a fresh name. It is always taken down: when a step fails, a threshold is missed, or a signal comes.
    The exit code is that of what failed first, and 6 whenever something may still cost money.

    Example: gpufleet smoke fleet.yaml --ttft-ms 2000 --junit smoke.xml
    """
    from gpufleet.engine.smoke import Thresholds, smoke
    from gpufleet.reporting.console import stderr
    from gpufleet.reporting.live import LiveView
    from gpufleet.spec.values import parse_duration

    try:
        longest = parse_duration(ttl)
    except ValueError as wrong:
        raise UsageError(f"--ttl {ttl}: {wrong}", hint="--ttl 4h") from None
    view = LiveView(stderr())
    with view:
        report = smoke(
            fleet_file(fleet, file),
            thresholds=Thresholds(ttft_ms, itl_p99_ms, tokens_per_s),
            ttl=longest,
            dry_run=dry_run,
            sink=view.sink,
        )
    if junit:
        _write(junit, report)
    _show(report, output)
    raise typer.Exit(report.exit_code)


def _write(path: Path, report: SmokeReport) -> None:
    from gpufleet.reporting.junit import junit

    path.write_text(junit(report.fleet, report.steps), encoding="utf-8")


def _show(report: SmokeReport, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        from gpufleet.reporting.json import dumps, to_json

        typer.echo(dumps({**to_json(report), "exit_code": report.exit_code}))
        return
    from gpufleet.domain.money import usd

    for step in report.steps:
        typer.echo(f"{'FAILED' if step.failure else 'ok':6} {step.name}, {step.seconds:.1f} s{_more(step)}")
    cost = "unknown" if report.usd is None else usd(report.usd)
    typer.echo(f"{report.fleet} cost {cost}" if any(step.name == "down" for step in report.steps) else report.fleet)


def _more(step: Step) -> str:
    parts = []
    if (seen := step.measured) is not None:
        parts = [f"{seen.served_by}", f"ttft {seen.ttft_ms:.0f} ms"]
        parts += [f"itl p99 {seen.itl_p99_ms:.0f} ms"] if seen.itl_p99_ms is not None else []
        parts += [f"{seen.tokens_per_s:.0f} tokens/s"] if seen.tokens_per_s is not None else []
    told = f": {', '.join(parts)}" if parts else ""
    return told + (f": {step.failure}" if step.failure else "")
