"""What a fleet file on disk may be, and how the loader says no."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpufleet.errors import InvalidFleet
from gpufleet.spec import load
from gpufleet.spec.load import MAX_BYTES, load_fleet
from tests.spec.fleets import BASE, edited, loaded, problems, refusal


def refused(path: Path) -> InvalidFleet:
    with pytest.raises(InvalidFleet) as caught:
        load_fleet(path)
    assert caught.value.message.isprintable()
    return caught.value


def test_a_valid_file_loads_and_knows_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(BASE)
    found = load_fleet(path)
    assert found.fleet.name == "demo"
    assert found.fleet.provider.use == "mock"
    assert found.base == tmp_path
    assert found.text == BASE
    assert found.warnings == ()
    assert found.line_of(("pools", "decode", "gpu")) == 10
    assert found.line_of(("router", "channels", "batch", "key")) == 23
    assert found.line_of(("pools", "decode", "engine", "mtp")) == 9, "a default is shown at its section"


def test_a_byte_order_mark_and_windows_line_ends_are_no_problem(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + BASE.replace("\n", "\r\n").encode())
    assert load_fleet(path).line_of(("pools", "decode", "gpu")) == 10


def test_a_missing_file_names_the_ways_to_name_one(tmp_path: Path) -> None:
    error = refused(tmp_path / "fleet.yaml")
    assert error.message == "there is no such fleet file"
    assert error.where == str(tmp_path / "fleet.yaml")
    assert "gpufleet init" in str(error.hint)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path).message == "a folder, not a fleet file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.touch(0o000)
    assert "Permission denied" in refused(path).message


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000])
def test_a_name_that_no_file_can_have_is_refused(name: str) -> None:
    assert refused(Path(name)).message.startswith("the fleet file cannot be read: ")


def test_text_in_another_encoding_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_bytes(b"name: demo\n# caf\xe9\n")
    error = refused(path)
    assert error.message == "the fleet file is not text in UTF-8"
    assert error.where == f"{path}:2"


def test_a_file_of_10_mb_is_refused_before_it_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_bytes(b"a" * 10_000_000)
    monkeypatch.setattr(load, "parse_document", lambda text: pytest.fail("parsed"))
    assert refused(path).message == "a fleet file is at most 1 MB, and this one is larger"


def test_an_endless_file_is_refused() -> None:
    assert refused(Path("/dev/zero")).message == "a fleet file is at most 1 MB, and this one is larger"


def test_a_file_of_just_1_mb_is_read(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(BASE + "#" * (MAX_BYTES - len(BASE)))
    assert load_fleet(path).fleet.name == "demo"


@pytest.mark.parametrize("text", ["", "\n\n", "# only\n# comments\n", "---\n", "---\n...\n", "~\n"])
def test_an_empty_file_is_said_to_be_empty(text: str) -> None:
    assert refusal(text).message == "the fleet file is empty"


@pytest.mark.parametrize("text", ["just text", "- a\n- b\n", "42", "'null'"])
def test_something_else_than_a_section_is_refused(text: str) -> None:
    error = refusal(text)
    assert error.message == "a fleet file is a section of 'key: value' lines"
    assert error.where == "fleet.yaml:1"


def test_all_problems_are_told_and_the_first_in_the_file_is_the_message() -> None:
    text = edited(("count: 1", "count: one"), ("name: demo", "name: Demo"), ("class: batch", "class: bulk"))
    error = refusal(text)
    assert error.where == "fleet.yaml:1"
    assert "2 more problems: gpufleet validate shows all" in str(error.hint)
    assert [(p.line, p.path) for p in problems(text)] == [
        (1, "name"),
        (14, "pools.native.count"),
        (22, "router.channels.batch.class"),
    ]


def test_warnings_do_not_stop_a_fleet() -> None:
    found = loaded(("gpu: B200:8", "gpu: B300:8"))
    assert [(w.line, w.path, str(w.severity)) for w in found.warnings] == [(10, "pools.decode.gpu", "warning")]
    assert "reported to work" in found.warnings[0].message


def test_warnings_come_after_errors() -> None:
    found = problems(edited(("gpu: B200:8", "gpu: B300:8"), ("count: 1", "count: 1\n    disk_gb: 10")))
    assert [str(p.severity) for p in found] == ["error", "warning"]


def test_an_empty_section_counts_as_left_out() -> None:
    text = BASE + "budget:\n  # ttl: 8h\nversions: ~\n"
    assert read(text) == read(BASE)


def read(text: str) -> object:
    return load.parse_fleet(text).fleet


def test_reading_the_file_needs_no_heavy_library() -> None:
    code = "import sys, gpufleet.spec.load; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"rich", "httpx", "paramiko", "sqlalchemy", "typer"} & set(modules)


def test_a_file_of_nothing_but_mistakes_is_answered_too() -> None:
    text = "".join(f"u{i}: 1\n" for i in range(20_000))
    assert len(problems(text)) == 200
