from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpufleet.remote.errors import ConnectionLost
from gpufleet.remote.local import LocalMachine


@pytest.fixture
def here(tmp_path: Path) -> LocalMachine:
    return LocalMachine(tmp_path)


def test_a_command_gets_its_stdin_and_gives_both_streams_and_the_exit_code(here: LocalMachine) -> None:
    done = here.run("cat; echo oops >&2; exit 3", stdin=b"in")
    assert (done.exit_code, done.stdout, done.stderr) == (3, "in", "oops\n")


def test_binary_input_streams_through(here: LocalMachine) -> None:
    data = os.urandom(3_000_000)
    assert b"".join(here.stream("cat", stdin=data)) == data


def test_a_command_that_is_too_slow_is_ended(here: LocalMachine) -> None:
    with pytest.raises(ConnectionLost, match="did not end within"):
        here.run("sleep 600", timeout=0.2)


def test_a_stream_ends_when_its_reader_has_had_enough(here: LocalMachine) -> None:
    assert list(here.stream("sleep 600", until=lambda: True)) == []


def test_the_workdir_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert LocalMachine(Path("w")).workdir == str(tmp_path / "w")
