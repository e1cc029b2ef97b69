"""Whatever the file holds, the loader ends in a fleet or in one clear error."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpufleet.errors import InvalidFleet
from gpufleet.spec.load import load_fleet
from tests.spec.fleets import BASE

LINES = BASE.splitlines(keepends=True)
SNIPPETS = [
    "",
    "  ",
    "\t",
    ":",
    "- ",
    "[",
    "]",
    "{",
    "}",
    "&a ",
    "*a",
    "<<: *a\n",
    "!x ",
    "~",
    "'",
    '"',
    "|\n",
    "---\n",
    "#",
]


def loads_or_refuses(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    try:
        load_fleet(path)
    except InvalidFleet as error:
        assert error.message.isprintable()
        assert error.where is not None
        assert error.where.startswith(str(path))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "fleet.yaml"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_any_bytes(path: Path, data: bytes) -> None:
    loads_or_refuses(path, data)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200))
def test_any_text(path: Path, text: str) -> None:
    loads_or_refuses(path, text.encode("utf-8", "surrogatepass"))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(BASE)), st.integers(0, 12), st.sampled_from(SNIPPETS) | st.text(max_size=6)),
        min_size=1,
        max_size=4,
    )
)
@example([(202, 0, "\U00018cd6")])  # a character without a glyph in an address, which the message repeated as it was
def test_a_valid_file_with_a_few_edits(path: Path, edits: list[tuple[int, int, str]]) -> None:
    text = BASE
    for start, length, replacement in edits:
        text = text[:start] + replacement + text[start + length :]
    loads_or_refuses(path, text.encode("utf-8", "surrogatepass"))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(LINES), max_size=30))
def test_lines_in_any_order(path: Path, lines: list[str]) -> None:
    loads_or_refuses(path, "".join(lines).encode())
