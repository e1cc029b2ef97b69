"""Where tables go. Colour only on a terminal, and never when ``NO_COLOR`` is set."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gpufleet.reporting.words import plain

DIM = "dim"
GOOD = "green"
WARN = "yellow"
BAD = "red"


class _Progress(Console):
    """A console that falls silent when nobody reads it any more; rich itself would end the program."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


def stdout() -> Console:
    """For results."""
    return Console(highlight=False, markup=False, emoji=False)


def stderr() -> Console:
    """For progress, warnings and questions."""
    return _Progress(stderr=True, highlight=False, markup=False, emoji=False)


class Page:
    """Parts one below the other, without the blanks that fill up a table's last column."""

    def __init__(self, *parts: RenderableType) -> None:
        self._content = Group(*parts)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self._content, options, pad=False):
            yield from _without_trailing_blanks(line)
            yield Segment.line()


def _without_trailing_blanks(line: Iterable[Segment]) -> list[Segment]:
    kept = list(line)
    while kept and not kept[-1].text.rstrip():
        kept.pop()
    return [*kept[:-1], Segment(kept[-1].text.rstrip(), kept[-1].style)] if kept else []


def text(value: object, style: str = "") -> Text:
    """One cell: never read as markup, never able to steer the terminal."""
    return Text(plain(str(value)), style=style)


def table(*columns: str, right: tuple[str, ...] = (), folding: tuple[str, ...] = ()) -> Table:
    """An unboxed table. Columns in ``right`` are numbers and never break; those in ``folding`` give way first."""
    made = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for name in columns:
        made.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=name in right,
            overflow="fold",
            ratio=None,
            min_width=8 if name in folding else None,
        )
    return made
