"""Hooks run with what they need to know, are stopped in time, and only where nobody else could have written them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.domain.progress import Progress, ProgressState
from gpufleet.engine import hooks
from gpufleet.engine.hooks import Hook, run_hook, try_hook
from gpufleet.engine.session import Session
from gpufleet.errors import GpufleetError
from tests.engine.market import Place, place


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path) as made:
        (tmp_path / "hooks").mkdir(mode=0o755)
        yield made


@pytest.fixture
def session(here: Place) -> Iterator[Session]:
    with here.session() as opened:
        yield opened


def write(here: Place, name: str, text: str, mode: int = 0o755) -> Path:
    path = here.root / "hooks" / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return path


def test_without_a_hook_nothing_happens(session: Session) -> None:
    run_hook(session, Hook.PRE_UP)


def test_it_is_told_what_it_is_about(here: Place, session: Session) -> None:
    write(here, "post-up", "env | grep ^GPUFLEET_ | sort >seen")
    run_hook(session, Hook.POST_UP, nodes="decode/0 native/1")
    seen = dict(line.split("=", 1) for line in (here.root / "seen").read_text().splitlines())
    assert seen["GPUFLEET_HOOK"] == "post-up"
    assert seen["GPUFLEET_FLEET"] == "test"
    assert seen["GPUFLEET_FILE"] == str(here.file.absolute())
    assert seen["GPUFLEET_NODES"] == "decode/0 native/1"


def test_a_failure_is_raised_with_its_code(here: Place, session: Session) -> None:
    write(here, "pre-up", "exit 3")
    with pytest.raises(GpufleetError, match=r"the hook pre-up failed \(exit 3\)"):
        run_hook(session, Hook.PRE_UP)


def test_a_failure_of_what_nothing_depends_on_is_shown(here: Place, session: Session) -> None:
    said: list[Progress] = []
    session.sink = said.append
    write(here, "post-up", "exit 1")
    try_hook(session, Hook.POST_UP)
    assert [event.state for event in said] == [ProgressState.RUNNING, ProgressState.FAILED]


def test_one_that_does_not_end_is_ended_with_its_children(
    here: Place, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "SECONDS", 0.2)
    write(here, "pre-up", "sleep 61 & wait")
    began = time.monotonic()
    with pytest.raises(GpufleetError, match="was not done after"):
        run_hook(session, Hook.PRE_UP)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_one_that_others_could_have_written_is_not_run(here: Place, session: Session, mode: int) -> None:
    write(here, "pre-up", "touch ran", mode)
    with pytest.raises(GpufleetError, match="others can write"):
        run_hook(session, Hook.PRE_UP)
    assert not (here.root / "ran").exists()


def test_a_folder_that_others_can_write_is_as_bad(here: Place, session: Session) -> None:
    write(here, "pre-up", "touch ran")
    (here.root / "hooks").chmod(0o777)
    with pytest.raises(GpufleetError, match="others can write"):
        run_hook(session, Hook.PRE_UP)


def test_one_that_is_not_executable_is_told_and_not_passed_over(here: Place, session: Session) -> None:
    write(here, "pre-up", "true", 0o644)
    with pytest.raises(GpufleetError, match="is not executable"):
        run_hook(session, Hook.PRE_UP)
