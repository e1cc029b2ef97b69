"""docs/faults.md and the tests agree: every report has one that is named after it, or a reason why it needs none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TABLE = (TESTS.parent / "docs" / "faults.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\d+) \| \[([^\]]+)\]\([^)]*\) \| [^|]* \| ([^|]*) \|$", TABLE, re.MULTILINE)
HELD = {name: re.findall(r"`([\w/]+\.py)::(\w+)`", held) for _, name, held in ROWS}
_REASONS = ("does not apply",)
"""How an entry begins that names no test: what it is about does not exist here, or what is there in place of a test."""


def test_every_report_stands_in_the_table_once() -> None:
    assert [int(number) for number, _, _ in ROWS] == list(range(1, 66))
    assert len(HELD) == 65


@pytest.mark.parametrize("report", HELD)
def test_a_report_has_tests_that_carry_its_name_or_a_reason_why_not(report: str) -> None:
    if not HELD[report]:
        (held,) = (held for _, name, held in ROWS if name == report)
        assert held.startswith(_REASONS)
    for file, test in HELD[report]:
        source = (TESTS / file).read_text(encoding="utf-8")
        found = re.search(rf"((?:^@.*\n(?:^[ )\]}}].*\n)*)*)^def {test}\(", source, re.MULTILINE)
        assert found, f"{file} has no {test}"
        assert _is_named_after(report, test) or f'"{report}"' in found[1], f"{file}::{test} does not name {report}"


def test_every_test_of_this_folder_stands_in_the_table() -> None:
    files = [path for path in Path(__file__).parent.glob("test_*.py") if path.name != Path(__file__).name]
    found = [name for path in files for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)]
    assert [name for name in found if name not in TABLE] == []


def test_every_mark_stands_in_the_table() -> None:
    marks = {
        (name, test)
        for path in TESTS.rglob("test_*.py")
        for names, test in re.findall(
            r"^@pytest\.mark\.report\((.*)\)\n(?:^[@ )\]}].*\n)*^def (\w+)", path.read_text(), re.MULTILINE
        )
        for name in re.findall(r'"([^"]+)"', names)
    }
    assert len(marks) > 30
    assert [mark for mark in marks if mark[1] not in [test for _, test in HELD.get(mark[0], [])]] == []


def _is_named_after(report: str, test: str) -> bool:
    """``vast-cli 482`` and ``test_vast_cli_482_...``; of a long name its last word and the number are enough."""
    words = re.split(r"[^a-z0-9]+", report.lower())
    return any(test.startswith("_".join(["test", *words[start:]]) + "_") for start in range(len(words) - 1)) or (
        words[-1] in test.split("_") and words[0].replace("-", "_") in test
    )
