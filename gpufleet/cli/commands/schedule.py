"""``gpufleet schedule``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli.options import DebugOption, FileOption, OutputFormat, OutputOption, WordsArgument, split_arguments
from gpufleet.cli.work import opened
from gpufleet.errors import UsageError

if TYPE_CHECKING:
    from gpufleet.engine.session import Session

USAGE = "show|install|remove [FLEET.yaml]"


def command(
    words: WordsArgument = None,
    *,
    every: Annotated[str, typer.Option("--every", metavar="TIME", help="install: from tick to tick.")] = "5m",
    env_file: Annotated[
        Path | None,
        typer.Option("--env-file", metavar="FILE", help="install: sets the variables of the file's secrets (0600)."),
    ] = None,
    systemd: Annotated[bool, typer.Option("--systemd", help="A timer of systemd in place of a crontab line.")] = False,
    file: FileOption = None,
    output: OutputOption = OutputFormat.TEXT,
    _debug: DebugOption = False,
) -> None:
    """Show what the schedule will do; have cron carry it out.

    show prints the next seven days: when what opens or closes, the counts from then on, and their price per hour as far
    as it is known. install writes a crontab line (or a systemd timer) that runs gpufleet tick; remove takes it out.

    Example: gpufleet schedule install --every 5m --env-file ~/.gpufleet.env
    """
    action, *rest = words or ["show"]
    if action not in {"show", "install", "remove"}:
        action, rest = "show", [action, *rest]
    path, rest = split_arguments(rest, file)
    if rest:
        raise UsageError(f"'{rest[0]}' is not something to do with a schedule", hint=f"gpufleet schedule {USAGE}")
    with opened(path) as session:
        if action == "show":
            _show(session, output)
        elif action == "install":
            _install(session, every, env_file, systemd=systemd)
        else:
            _remove(session, systemd=systemd)


def _show(session: Session, output: OutputFormat) -> None:
    from gpufleet.engine.forecast import forecast

    days = forecast(session)
    if output is OutputFormat.JSON:
        from gpufleet.reporting.json import dumps

        typer.echo(dumps({"fleet": session.fleet.name, "changes": days}))
        return
    from gpufleet.reporting.console import stdout
    from gpufleet.reporting.schedule import schedule_view

    schedule = session.loaded.fleet.schedule
    stdout().print(schedule_view(days, schedule.zone if schedule else "UTC", session.fleet.pools))


def _install(session: Session, every: str, env_file: Path | None, *, systemd: bool) -> None:
    from gpufleet.engine import timers
    from gpufleet.spec.checks.files import secrets
    from gpufleet.spec.values import parse_duration

    try:
        pause = parse_duration(every)
    except ValueError as wrong:
        raise UsageError(f"--every {every}: {wrong}", hint="--every 5m") from None
    env_file = env_file.expanduser().absolute() if env_file else None
    names = sorted({secret.name for _, secret in secrets(session.fleet) if secret.kind == "env"})
    if lacking := timers.missing_variables(names, env_file):
        raise UsageError(
            f"a timer has no variables of this shell, and the fleet file's secrets need {', '.join(lacking)}",
            hint="write NAME=value lines into a file of mode 0600 and name it with --env-file, or use file: references",
        )
    timer = timers.Timer(session.fleet.name, session.path.absolute(), session.state_dir.absolute(), pause, env_file)
    (timers.install_in_systemd if systemd else timers.install_in_cron)(timer)
    where = "systemd" if systemd else "cron"
    typer.echo(f"{where} ticks {session.fleet.name} every {every}; its log: {timer.log}")


def _remove(session: Session, *, systemd: bool) -> None:
    from gpufleet.engine import timers

    fleet = session.fleet.name
    gone = timers.remove_from_systemd(fleet) if systemd else timers.remove_from_cron(fleet)
    where = "systemd" if systemd else "cron"
    typer.echo(f"{where} ticks {fleet} no more" if gone else f"{where} did not tick {fleet}")
