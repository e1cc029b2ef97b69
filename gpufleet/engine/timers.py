"""Have cron, or systemd's timers of this user, run ``gpufleet tick``. Other lines of a crontab stay byte for byte."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from gpufleet.errors import GpufleetError, UsageError
from gpufleet.routing.files import write_atomically

_BEGIN, _END = "# gpufleet begin {}", "# gpufleet end {}"


@dataclass(frozen=True)
class Timer:
    """One fleet's regular tick."""

    fleet: str
    file: Path
    """Absolute."""
    state: Path
    every: timedelta
    env_file: Path | None = None
    """Sets the variables that the fleet file's secrets refer to; a timer has none of a shell's."""

    @property
    def log(self) -> Path:
        """What tick says on stderr: its progress, its warnings and its errors."""
        return self.state / "fleets" / self.fleet / "tick.log"

    @property
    def command(self) -> str:
        """A shell line with absolute paths alone, which prints a line when something changed."""
        keep = {"PATH": os.environ.get("PATH", os.defpath), "GPUFLEET_STATE": str(self.state)}
        keep |= {k: os.environ[k] for k in ("GPUFLEET_LEDGER",) if k in os.environ and "@" not in os.environ[k]}
        settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in keep.items())
        source = f"set -a; . {shlex.quote(str(self.env_file))}; set +a; " if self.env_file else ""
        run = shlex.join([sys.executable, "-m", "gpufleet", "tick", str(self.file)])
        return f"{source}{settings} {run} 2>>{shlex.quote(str(self.log))}"


def missing_variables(names: list[str], env_file: Path | None) -> list[str]:
    """Variables that the fleet file's secrets refer to and that a timer would not have.

    Raises:
        UsageError: others may read the file.
    """
    if env_file is None:
        return names
    try:
        if env_file.stat().st_mode & 0o077:
            raise UsageError(f"others on this machine can read {env_file}", hint=f"chmod 600 {env_file}")
        lines = [line.strip().removeprefix("export ") for line in env_file.read_text().splitlines()]
    except OSError as error:
        raise UsageError(f"{env_file} cannot be read: {error.strerror}") from None
    given = {line.partition("=")[0].strip() for line in lines if "=" in line and not line.startswith("#")}
    return [name for name in names if name not in given]


def cron_fields(every: timedelta) -> str:
    """``*/5 * * * *``.

    Raises:
        UsageError: cron cannot say it: it knows minutes that divide an hour, and hours that divide a day.
    """
    minutes, rest = divmod(int(every.total_seconds()), 60)
    if rest == 0 and 0 < minutes < 60 and 60 % minutes == 0:
        return f"*/{minutes} * * * *" if minutes > 1 else "* * * * *"
    hours, odd = divmod(minutes, 60)
    if rest == odd == 0 and 0 < hours <= 24 and 24 % hours == 0:
        return f"0 */{hours} * * *" if 1 < hours < 24 else ("0 * * * *" if hours == 1 else "0 0 * * *")
    raise UsageError("cron cannot tick in such steps", hint="--every 1m, 5m, 10m, 15m, 30m, 1h")


def with_block(crontab: str, timer: Timer) -> str:
    """A crontab that ticks this fleet, in the place of what did before."""
    line = f"{cron_fields(timer.every)} {timer.command}"
    # Cron ends a command at a plain percent sign, and feeds it the rest.
    block = "\n".join((_BEGIN.format(timer.fleet), line.replace("%", r"\%"), _END.format(timer.fleet)))
    rest = without_block(crontab, timer.fleet)
    return f"{rest}{'' if not rest or rest.endswith(chr(10)) else chr(10)}{block}\n"


def without_block(crontab: str, fleet: str) -> str:
    """A crontab that does not tick this fleet."""
    begin, end = _BEGIN.format(fleet), _END.format(fleet)
    kept: list[str] = []
    inside = False
    for line in crontab.splitlines(keepends=True):
        inside = inside or line.rstrip("\n") == begin
        if not inside:
            kept.append(line)
        inside = inside and line.rstrip("\n") != end
    return "".join(kept)


def install_in_cron(timer: Timer) -> None:
    """Write the crontab of this user.

    Raises:
        GpufleetError: there is no cron here, or it refuses.
    """
    timer.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    before = _crontab()
    if (after := with_block(before, timer)) != before:
        _run(["crontab", "-"], after)


def remove_from_cron(fleet: str) -> bool:
    """Take this fleet out of the crontab; False when it was not in it."""
    before = _crontab()
    after = without_block(before, fleet)
    if after != before:
        _run(["crontab", "-"], after)
    return after != before


def install_in_systemd(timer: Timer) -> None:
    """Write a timer and a service of this user and start the timer.

    Raises:
        GpufleetError: systemd does not run for this user.
    """
    timer.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for suffix, text in _units(timer).items():
        write_atomically(_unit(timer.fleet, suffix), text, mode=0o600)
    _run(["systemctl", "--user", "daemon-reload"])
    _run(["systemctl", "--user", "enable", "--now", f"gpufleet-{timer.fleet}.timer"])


def remove_from_systemd(fleet: str) -> bool:
    """Stop and remove them; False when there were none."""
    units = [unit for suffix in ("timer", "service") if (unit := _unit(fleet, suffix)).exists()]
    if units:
        _run(["systemctl", "--user", "disable", "--now", f"gpufleet-{fleet}.timer"])
        for unit in units:
            unit.unlink()
        _run(["systemctl", "--user", "daemon-reload"])
    return bool(units)


def _units(timer: Timer) -> dict[str, str]:
    about = f"Description=gpufleet tick of {timer.fleet}"
    # systemd reads percent signs as specifiers and dollar signs as variables.
    command = shlex.quote(timer.command).replace("%", "%%").replace("$", "$$")
    seconds = int(timer.every.total_seconds())
    return {
        "service": f"[Unit]\n{about}\n\n[Service]\nType=oneshot\nExecStart=/bin/sh -c {command}\n",
        "timer": f"[Unit]\n{about}\n\n[Timer]\nOnBootSec=60\nOnUnitActiveSec={seconds}\nAccuracySec=1\n\n"
        "[Install]\nWantedBy=timers.target\n",
    }


def _unit(fleet: str, suffix: str) -> Path:
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return config / "systemd/user" / f"gpufleet-{fleet}.{suffix}"


def _crontab() -> str:
    done = _call(["crontab", "-l"])
    if done.returncode and "no crontab" not in done.stderr:
        raise GpufleetError(f"the crontab cannot be read: {done.stderr.strip() or done.returncode}")
    return done.stdout if done.returncode == 0 else ""


def _run(words: list[str], text: str = "") -> None:
    done = _call(words, text)
    if done.returncode:
        raise GpufleetError(f"{words[0]} refuses: {(done.stderr or done.stdout).strip()}")


def _call(words: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise GpufleetError(
            f"{words[0]} is not installed here", hint="call `gpufleet tick` some other way, or run `gpufleet watch`"
        ) from None
