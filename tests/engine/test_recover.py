"""A fleet file that is gone, broken or renamed: what it brought up stays in sight and removable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpufleet.engine import api
from gpufleet.engine.down import take_down
from gpufleet.engine.session import open_session
from gpufleet.errors import InvalidFleet, StillBilling
from tests.engine.market import Place, assert_even, place, rent_one

WAYS: dict[str, Callable[[Path], object]] = {
    "broken": lambda file: file.write_text("name: [unclosed"),
    "not a fleet any more": lambda file: file.write_text("name: test\npools: {}\n"),
    "gone": lambda file: file.unlink(),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("way", WAYS)
def test_down_and_status_work_with_a_fleet_file_that_is(tmp_path: Path, way: str) -> None:
    with place(tmp_path) as here:
        with here.session() as session:
            rent_one(session)
        WAYS[way](here.file)
        with open_session(here.file, state_dir=tmp_path / "s", recover=True) as session:
            assert session.warnings[0].message.endswith("this is fleet test as it was last brought up")
            assert [n.serving for n in api.status(session).nodes] == ["starting"]
            take_down(session)
            assert_even(session, here)


def test_only_looking_and_removing_work_without_the_file(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        with here.session() as session:
            rent_one(session)
        here.file.unlink()
        with pytest.raises(InvalidFleet, match="no such fleet file"):
            open_session(here.file, state_dir=tmp_path / "s")


def test_with_nothing_left_a_broken_file_is_just_that(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        with here.session() as session:
            rent_one(session)
            take_down(session)
        here.file.write_text("")
        with pytest.raises(InvalidFleet, match="empty"):
            open_session(here.file, state_dir=tmp_path / "s", recover=True)


def test_where_nothing_was_ever_brought_up_no_ledger_comes_into_being(tmp_path: Path) -> None:
    with pytest.raises(InvalidFleet):
        open_session(tmp_path / "fleet.yaml", state_dir=tmp_path / "s", recover=True)
    assert not (tmp_path / "s").exists()


def _renamed(here: Place) -> None:
    with here.session() as session:
        rent_one(session)
    here.write(name="other")


def test_up_refuses_a_renamed_file_while_what_it_brought_up_runs(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        _renamed(here)
        with here.session() as session, pytest.raises(InvalidFleet, match="brought up fleet test, which still runs"):
            api.check(session)


def test_down_on_a_renamed_file_removes_what_it_brought_up(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        _renamed(here)
        with open_session(here.file, state_dir=tmp_path / "s", recover=True) as session:
            assert session.fleet.name == "test"
            assert "the file names fleet other now" in session.warnings[0].message
            take_down(session)
            assert_even(session, here)


def test_down_says_so_while_a_fleet_of_the_files_former_name_is_left(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        _renamed(here)
        with here.session() as session:
            rent_one(session)
            with pytest.raises(StillBilling, match="test, which this file brought up under that name, still runs"):
                take_down(session)
        with open_session(here.file, state_dir=tmp_path / "s", recover=True) as session:
            take_down(session)
            assert here.running() == []
