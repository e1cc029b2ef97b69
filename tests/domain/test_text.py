"""Nothing that others wrote steers a terminal."""

from __future__ import annotations

import pytest

from gpufleet.domain.text import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, with ümlauts and 漢字", "plain, with ümlauts and 漢字"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[Hcleared", "cleared"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("over\rwritten", "overwritten"),
        ("back\x08space and bell\x07", "backspace and bell"),
        ("C1 \x9b31m too", "C1 31m too"),
        ("abc\u202edcba", "abcdcba"),
        ("half a sequence \x1b[", "half a sequence ["),
    ],
)
def test_it_keeps_what_is_read_and_drops_what_steers(text: str, shown: str) -> None:
    assert visible(text) == shown
