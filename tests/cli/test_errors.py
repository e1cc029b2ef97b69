"""Every failure is one line of what, one of where, one of what next; a JSON document on request; and its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpufleet import errors
from gpufleet.cli.failures import Report, as_gpufleet_error, document, kind, lines
from gpufleet.providers.errors import CapacityError, RateLimited
from tests.cli.shell import gpufleet

VALID = Path(__file__).parents[2] / "examples/quickstart.yaml"


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.yaml"
    path.write_text("nam: x\nprovider: mock\n", encoding="utf-8")
    return path


def test_an_error_is_told_in_three_lines() -> None:
    error = errors.NodeFailed("no GPUs", where="decode/0 check", hint="gpufleet logs decode/0")
    assert lines(error) == ["error: no GPUs", "  at: decode/0 check", "  next: gpufleet logs decode/0"]
    assert lines(errors.NodeFailed("no GPUs")) == ["error: no GPUs"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.UsageError(""), "usage-error"),
        (CapacityError(""), "provider-refused"),
        (RateLimited(""), "provider-refused"),
        (errors.StillBilling(""), "still-billing"),
        (errors.GpufleetError(""), "gpufleet-error"),
    ],
)
def test_the_kind_names_the_family_that_decides_the_exit_code(error: errors.GpufleetError, expected: str) -> None:
    assert kind(error) == expected


def test_an_error_of_the_system_is_told_without_a_traceback() -> None:
    told = as_gpufleet_error(OSError(28, "No space left on device", "/state/ledger.db"))
    assert (told.message, told.where, told.exit_code) == ("no space left on device", "/state/ledger.db", 1)


def test_a_mistake_of_ours_is_called_one_and_asks_for_a_report() -> None:
    told = as_gpufleet_error(KeyError("x"))
    assert told.message == "internal error: KeyError: 'x'"
    assert told.hint is not None
    assert "--debug" in told.hint


@pytest.mark.parametrize(
    ("argv", "json", "debug"),
    [
        (["plan", "-o", "json"], True, False),
        (["plan", "--output=json", "--debug"], True, True),
        (["plan", "-ojson"], True, False),
        (["plan", "-o", "text"], False, False),
        (["exec", "all", "--", "tool", "-o", "json", "--debug"], False, False),
        (["plan", "-o"], False, False),
    ],
)
def test_how_errors_are_told_is_known_before_the_command_line_is_parsed(
    argv: list[str], json: bool, debug: bool
) -> None:
    assert Report.asked_for_by(argv) == Report(json=json, debug=debug)


def test_every_problem_of_a_fleet_file_is_told_with_its_line(bad: Path) -> None:
    result = gpufleet("validate", str(bad))
    assert result.code == 3
    assert result.out == ""
    assert "did you mean 'name'?" in result.err
    assert f"  at: {bad}:1" in result.err
    assert result.err.count("error: ") >= 3
    assert "Traceback" not in result.err


def test_a_file_full_of_mistakes_does_not_scroll_the_first_one_away(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("".join(f"wrong{i}: 1\n" for i in range(100)), encoding="utf-8")
    told = gpufleet("validate", str(path)).err.splitlines()
    assert told[-1].startswith("and ")
    assert len(told) < 70


def test_errors_as_json_stand_alone_on_stdout(bad: Path) -> None:
    result = gpufleet("validate", str(bad), "-o", "json")
    error = result.json["error"]
    assert (result.code, error["exit_code"], error["kind"]) == (3, 3, "invalid-fleet")
    assert error["problems"][0]["where"].startswith(str(bad))
    assert result.err == ""


def test_a_usage_error_as_json_too() -> None:
    result = gpufleet("plan", "--nope", "-o", "json")
    assert (result.code, result.json["error"]["kind"]) == (2, "usage-error")


def test_validate_tells_what_each_node_has_and_needs() -> None:
    told = gpufleet("validate", str(VALID)).out.splitlines()
    assert told[0] == f"{VALID} is valid: fleet quickstart, 2 prefill (H200:8), 2 decode (B200:8), 1 native (H200:8)"
    assert "  prefill  1128 GB of VRAM (needs 893), needs 800 GB of disk and 256 GB of RAM" in told
    assert gpufleet("validate", str(VALID), "-o", "json").json["sizes"]["decode"]["vram_gb"] == 1440


def test_debug_adds_the_traceback(bad: Path) -> None:
    result = gpufleet("validate", str(bad), "--debug")
    assert "Traceback" in result.err
    assert result.err.rstrip().splitlines()[-1].startswith("  next:")


def test_no_fleet_file_at_all_names_the_next_command(tmp_path: Path) -> None:
    result = gpufleet("validate", cwd=tmp_path)
    assert result.code == 3
    assert "gpufleet init" in result.err


def test_a_missing_fleet_file_is_named(tmp_path: Path) -> None:
    result = gpufleet("validate", "nowhere.yaml", cwd=tmp_path)
    assert result.code == 3
    assert "nowhere.yaml" in result.err


@pytest.mark.parametrize("words", [("schema",), ("--help",), ("up", "--help")])
def test_a_reader_that_goes_away_ends_the_run_quietly(words: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "gpufleet", *words]
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.stderr == b""
    assert done.returncode == 141


def test_a_document_without_problems_has_none_of_their_keys() -> None:
    assert list(document(errors.Declined("no"))) == ["kind", "exit_code", "message", "where", "hint"]
