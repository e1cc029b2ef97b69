"""`init` writes a valid fleet file from flags or answers, keeps keys private, and overwrites nothing."""

from __future__ import annotations

import os
import pty
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpufleet.cli.commands.init import QUESTIONS
from gpufleet.spec.load import load_fleet
from tests.cli.shell import gpufleet


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_yes_writes_the_defaults_and_the_next_commands(tmp_path: Path) -> None:
    result = gpufleet("init", "--yes", cwd=tmp_path)
    assert (result.code, result.err) == (0, "")
    fleet = load_fleet(tmp_path / "fleet.yaml").fleet
    assert fleet.provider.use == "mock"
    assert (tmp_path / "fleet.schema.json").exists()
    for line in ("export GPUFLEET_CHAT_KEY=", "gpufleet validate", "gpufleet plan", "gpufleet up"):
        assert line in result.out


def test_flags_say_what_the_file_says(tmp_path: Path) -> None:
    words = ["--name", "shop", "--prefill", "2", "--decode", "2", "--native", "3", "--listen", "127.0.0.1:9000"]
    assert gpufleet("init", "shop.yaml", *words, "--max-usd-per-hour", "250.50", cwd=tmp_path).code == 0
    fleet = load_fleet(tmp_path / "shop.yaml").fleet
    assert (fleet.name, fleet.router.listen) == ("shop", "127.0.0.1:9000")
    assert [pool.count for pool in fleet.pools.values()] == [2, 2, 3]
    assert str(fleet.budget.max_usd_per_hour) in {"250.50", "250.5"}


def test_new_keys_are_random_private_and_kept_from_git(tmp_path: Path) -> None:
    result = gpufleet("init", "--keys", "file", "-o", "json", cwd=tmp_path)
    chat, batch = (tmp_path / "secrets" / f"{name}.key" for name in ("chat", "batch"))
    assert mode(chat) == mode(batch) == 0o600
    assert mode(tmp_path / "secrets") == 0o700
    assert (tmp_path / "secrets/.gitignore").read_text() == "*\n"
    assert chat.read_text() != batch.read_text()
    assert chat.read_text().strip() not in result.out + (tmp_path / "fleet.yaml").read_text()
    assert result.json["needs_env"] == []
    assert result.json["next"][0] == "gpufleet validate"


def test_a_key_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/chat.key").write_text("mine")
    gpufleet("init", "--keys", "file", cwd=tmp_path)
    assert (tmp_path / "secrets/chat.key").read_text() == "mine"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text("mine")
    result = gpufleet("init", "--yes", cwd=tmp_path)
    assert result.code == 3
    assert "exists already" in result.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fleet.yaml"]
    assert (tmp_path / "fleet.yaml").read_text() == "mine"


def test_a_schema_file_of_somebody_else_stays(tmp_path: Path) -> None:
    (tmp_path / "fleet.schema.json").write_text("{}")
    gpufleet("init", "--yes", cwd=tmp_path)
    assert (tmp_path / "fleet.schema.json").read_text() == "{}"


def test_without_a_terminal_and_without_flags_it_refuses(tmp_path: Path) -> None:
    result = gpufleet("init", cwd=tmp_path)
    assert result.code == 7
    assert "--yes" in result.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--name", "Two Words"], 3, "fleet name"),
        (["--decode", "3", "--prefill", "1"], 3, "decode"),
        (["--decode-gpu", "H100:8"], 3, "B200"),
        (["--listen", "nowhere"], 3, "host:port"),
        (["--max-usd-per-hour", "lots"], 2, "'lots'"),
        (["--max-usd-per-hour", "NaN"], 2, "'NaN'"),
        (["--prefill", "-1"], 2, "prefill"),
        (["--keys", "vault"], 2, "vault"),
    ],
)
def test_answers_that_make_no_fleet_write_nothing(tmp_path: Path, words: list[str], code: int, text: str) -> None:
    result = gpufleet("init", *words, cwd=tmp_path)
    assert result.code == code
    assert text in result.err
    assert "Traceback" not in result.err
    assert list(tmp_path.iterdir()) == []


def test_on_a_terminal_it_asks_and_enter_takes_the_default(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "gpufleet", "init"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        os.close(theirs)
        os.write(ours, b"shop\n" + b"\n" * len(QUESTIONS))
        out, err = run.communicate(timeout=60)
    os.close(ours)
    assert run.returncode == 0, err
    assert load_fleet(tmp_path / "fleet.yaml").fleet.name == "shop"
    assert b"Name of the fleet" in err
    assert b"Name of the fleet" not in out
