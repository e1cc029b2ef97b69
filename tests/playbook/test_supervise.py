"""supervise.sh keeps a program running where there is neither docker nor an init system. Real processes throughout."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.playbook.conftest import PLAYBOOKS


@dataclass
class Place:
    folder: Path

    def describe(self, *argv: str, env: str = "") -> None:
        """What is to run."""
        (self.folder / "argv").write_text(shlex.join(argv))
        (self.folder / "env").write_text(env)
        shutil.copy(PLAYBOOKS / "files/supervise.sh", self.folder / "supervise.sh")

    def do(self, command: str, *more: str, **env: str) -> str:
        script = str(self.folder / "supervise.sh")
        done = subprocess.run(
            ["sh", script, command, str(self.folder), *more],
            capture_output=True, text=True, check=True, env={**os.environ, **env}, timeout=30,
        )  # fmt: skip
        return done.stdout.strip()

    def state(self) -> str:
        return self.do("state")

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not holds():
            assert time.monotonic() < deadline, (self.state(), self.log())
            time.sleep(0.02)

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def pids(self) -> set[int]:
        """Every process that carries the program's mark."""
        mark = f"GPUFLEET_PROCESS={self.folder}/.".encode()
        found = set()
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdecimal() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
            except OSError:
                continue
        return found


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    folder = tmp_path / "run" / "it's one"
    folder.mkdir(parents=True)
    made = Place(folder)
    made.describe("true")
    yield made
    made.do("stop")
    assert not made.pids()


def test_a_program_runs_with_its_words_and_its_environment(place: Place) -> None:
    place.describe("sh", "-c", 'echo "$1|$GREETING"; exec sleep 60', "sh", "it's $HOME", env="export GREETING='a b'\n")
    place.do("start", "one")
    place.until(lambda: "it's $HOME|a b" in place.log())
    assert place.state() == "running 0"


def test_the_same_again_is_left_alone_and_another_takes_its_place(place: Place) -> None:
    place.describe("sleep", "60")
    place.do("start", "one")
    place.until(lambda: len(place.pids()) == 1)
    before = place.pids()
    place.do("start", "one")
    assert place.pids() == before
    place.do("start", "two")
    place.until(lambda: len(place.pids()) == 1 and place.pids() != before)


def test_what_ends_is_started_again_and_counted(place: Place) -> None:
    place.describe("sleep", "60")
    place.do("start", "one")
    place.until(lambda: len(place.pids()) == 1)
    os.kill(place.pids().pop(), signal.SIGKILL)
    place.until(lambda: place.state() == "running 1")


def test_what_keeps_ending_is_started_less_and_less_often_and_its_exit_code_is_told(place: Place) -> None:
    place.describe("sh", "-c", "exit 7")
    place.do("start", "one")
    place.until(lambda: place.state().startswith("restarting") and place.state().endswith(" 7"))
    assert "ended with exit code 7" in place.log()


def test_stop_ends_what_ignores_it_and_what_has_left_the_session(place: Place) -> None:
    place.describe("sh", "-c", "trap '' TERM; setsid sleep 61 & while :; do sleep 1; done")
    place.do("start", "one")
    place.until(lambda: len(place.pids()) >= 2)
    place.do("stop")
    assert place.state() == "stopped"
    assert not place.pids()


def test_a_killed_supervisor_is_replaced_and_its_program_does_not_run_twice(place: Place) -> None:
    place.describe("sleep", "60")
    place.do("start", "one")
    place.until(lambda: len(place.pids()) == 1)
    orphan = place.pids()
    os.kill(int((place.folder / "supervisor").read_text()), signal.SIGKILL)
    place.until(lambda: place.state() == "stopped")
    place.do("start", "one")
    place.until(lambda: len(place.pids()) == 1 and place.pids() != orphan)


def test_after_a_stopped_container_it_runs_again_unless_it_was_stopped(place: Place) -> None:
    place.describe("sleep", "60")
    place.do("start", "one")
    os.kill(int((place.folder / "supervisor").read_text()), signal.SIGKILL)
    place.until(lambda: place.state() == "stopped")
    place.do("revive")
    assert place.state() == "running 0"
    place.do("stop")
    place.do("revive")
    assert place.state() == "stopped"


def test_two_starts_at_once_start_one(place: Place) -> None:
    place.describe("sleep", "60")
    script = str(place.folder / "supervise.sh")
    both = [subprocess.Popen(["sh", script, "start", str(place.folder), "one"]) for _ in range(2)]
    assert [process.wait(30) for process in both] == [0, 0]
    place.until(lambda: len(place.pids()) == 1)


def test_a_long_log_makes_way(place: Place) -> None:
    place.describe("sh", "-c", "while :; do echo a line of some length; sleep 0.01; done")
    place.do("start", "one", SUPERVISE_LOG_BYTES="2000", SUPERVISE_LOG_SECONDS="0.1")
    place.until(lambda: (place.folder / "log.1").exists() and (place.folder / "log.2").exists())
    assert (place.folder / "log").stat().st_size < 20_000


def test_its_files_are_for_nobody_else(place: Place) -> None:
    place.do("start", "one")
    own = [path for path in place.folder.iterdir() if path.name not in {"argv", "env", "supervise.sh"}]
    assert own
    assert {path.stat().st_mode & 0o077 for path in own} == {0}
