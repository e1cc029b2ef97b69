"""A crontab gains and loses our block and nothing else; cron's own rules about percent signs and newlines are kept."""

from __future__ import annotations

import shlex
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.engine import timers
from gpufleet.engine.timers import Timer, cron_fields, missing_variables, with_block, without_block
from gpufleet.errors import GpufleetError, UsageError

CRONTAB = """#!/bin/sh
# As the real one: it takes no text that does not end in a newline, and knows only its own file.
set -eu
table=$CRON_TEST_FILE
case $1 in
-l) [ -e "$table" ] || { echo "no crontab for tester" >&2; exit 1; }; cat "$table" ;;
-)
  cat >"$table.new"
  [ -z "$(tail -c 1 "$table.new")" ] || { echo "new crontab file is missing newline before EOF" >&2; exit 1; }
  mv "$table.new" "$table"
  ;;
esac
"""


def timer(fleet: str = "chat", file: str = "/srv/fleets/chat.yaml", every: int = 300) -> Timer:
    return Timer(fleet, Path(file), Path("/var/state"), timedelta(seconds=every))


@given(before=st.text(st.characters(codec="ascii", exclude_characters="\r\x0b\x0c\x1c\x1d\x1e"), max_size=200))
def test_other_lines_stay_as_they_are(before: str) -> None:
    both = with_block(with_block(before, timer("other")), timer())
    ended = before if not before or before.endswith("\n") else f"{before}\n"
    assert without_block(without_block(both, "chat"), "other") == ended


def test_installing_twice_leaves_one_line() -> None:
    once = with_block("MAILTO=me\n", timer())
    assert with_block(once, timer()) == once
    assert with_block(once, timer(every=600)).count("gpufleet tick") == once.count("gpufleet tick")


def test_cron_runs_the_command_that_we_meant(tmp_path: Path) -> None:
    """Cron turns an escaped percent sign back, and hands the line to sh."""
    odd = tmp_path / "a 'b' 100%"
    odd.mkdir()
    line = with_block("", Timer("chat", odd / "f.yaml", odd, timedelta(minutes=5))).splitlines()[1]
    command = line.split(None, 5)[5].replace(r"\%", "%")
    assert shlex.split(command)[-2:] == [str(odd / "f.yaml"), f"2>>{odd / 'fleets/chat/tick.log'}"]
    assert subprocess.run(["sh", "-n", "-c", command], check=False).returncode == 0


@pytest.mark.parametrize(
    ("seconds", "fields"), [(60, "* * * * *"), (300, "*/5 * * * *"), (3600, "0 * * * *"), (86400, "0 0 * * *")]
)
def test_steps_that_cron_can_say(seconds: int, fields: str) -> None:
    assert cron_fields(timedelta(seconds=seconds)) == fields


@pytest.mark.parametrize("seconds", [30, 90, 7 * 60, 5 * 3600, 90 * 60])
def test_steps_that_cron_cannot_say_are_refused(seconds: int) -> None:
    with pytest.raises(UsageError, match="cannot tick"):
        cron_fields(timedelta(seconds=seconds))


def test_a_crontab_is_written_and_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin/crontab"
    program.parent.mkdir()
    program.write_text(CRONTAB)
    program.chmod(0o755)
    table = tmp_path / "table"
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("CRON_TEST_FILE", str(table))
    mine = Timer("chat", tmp_path / "f.yaml", tmp_path / "s", timedelta(minutes=5))
    assert timers.remove_from_cron("chat") is False
    timers.install_in_cron(mine)
    assert "tick" in table.read_text()
    table.write_text(f"0 0 * * * backup\n{table.read_text()}")
    assert timers.remove_from_cron("chat") is True
    assert table.read_text() == "0 0 * * * backup\n"


def test_without_cron_it_says_what_else_there_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GpufleetError, match="crontab is not installed here"):
        timers.remove_from_cron("chat")


def test_variables_that_a_timer_would_lack_are_named(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text("# comment\nexport CHAT=x\nOTHER=y\n")
    file.chmod(0o600)
    assert missing_variables(["CHAT", "BATCH"], file) == ["BATCH"]
    assert missing_variables(["CHAT"], None) == ["CHAT"]
    file.chmod(0o644)
    with pytest.raises(UsageError, match="others on this machine can read"):
        missing_variables(["CHAT"], file)
