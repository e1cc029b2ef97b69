"""docs/faults.md names tests that exist, and every report once."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = (TESTS.parent / "docs" / "faults.md").read_text(encoding="utf-8")


def test_every_report_stands_in_the_table_once() -> None:
    assert [int(number) for number in re.findall(r"^\| (\d+) \|", TABLE, re.MULTILINE)] == list(range(1, 66))


def test_every_test_that_the_table_names_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", TABLE)
    assert named
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not re.search(rf"def {name}\(", (TESTS / file).read_text(encoding="utf-8"))
    ]
    assert missing == []


def test_every_test_of_this_folder_stands_in_the_table() -> None:
    files = [path for path in Path(__file__).parent.glob("test_*.py") if path.name != Path(__file__).name]
    found = [name for path in files for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)]
    assert [name for name in found if name not in TABLE] == []
