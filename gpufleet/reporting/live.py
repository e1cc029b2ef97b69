"""Progress while it happens: one live line per node on a terminal, plain lines with the time anywhere else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gpufleet.domain.nodes import NodeName
from gpufleet.domain.progress import Progress, ProgressState
from gpufleet.reporting.board import Board, Row
from gpufleet.reporting.console import BAD, DIM, GOOD, text
from gpufleet.reporting.words import count, duration, named

PERCENT_STEP = 10
_WAIT = "wait"
_ENDS = {"ready": "ready", "confirm": "gone"}
"""How nodes are called whose phase of this name is done."""
_FRAMES_PER_SECOND = 4
_STYLES = {ProgressState.RUNNING: "", ProgressState.DONE: GOOD, ProgressState.FAILED: BAD}
_MARKS = {ProgressState.RUNNING: ("·", "."), ProgressState.DONE: ("✓", "+"), ProgressState.FAILED: ("✗", "x")}


def _utc_now() -> datetime:
    return datetime.now(UTC)


class LiveView:
    """Shows a run's progress on ``console``; `sink` is what the engine calls. Use as a context manager around the run.

    Events that come before it is entered are kept, and shown once it is.

    Args:
        console: where to write, stderr as a rule.
        board: gathers the events.
        now: the time of plain lines.
    """

    def __init__(self, console: Console, *, board: Board | None = None, now: Callable[[], datetime] = _utc_now) -> None:
        self._console = console
        self._board = board or Board()
        self._now = now
        self._lines = threading.Lock()
        self._shown: dict[tuple[object, str], tuple[ProgressState, str, int]] = {}
        self._live: Live | None = None
        self.quiet = False
        """Set for a run that should find nothing to do: what it merely checked leaves no word."""
        self._animated = console.is_terminal and not console.is_dumb_terminal

    def sink(self, event: Progress) -> None:
        """Take an event from any thread; never raises because of a closed stderr."""
        self._board.update(event)
        if self._animated:
            return
        with suppress(OSError, ValueError), self._lines:
            if self._worth_a_line(event):
                self._console.print(text(plain_line(event, self._now())), soft_wrap=True)

    def __enter__(self) -> LiveView:
        if self._animated:
            board = BoardView(self._board)
            self._live = Live(board, console=self._console, refresh_per_second=_FRAMES_PER_SECOND, transient=self.quiet)
            self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        succeeded = kind is None
        if succeeded:
            self._board.settle()
        with suppress(OSError, ValueError):
            if self._live:
                self._live.stop()
            if self._board.node_rows() and not (self.quiet and succeeded):
                self._console.print(text(summary(self._board, succeeded=succeeded), DIM))

    def _worth_a_line(self, event: Progress) -> bool:
        """A new phase, a new outcome, or another tenth of a percentage: so that 50 nodes stay readable in a CI log."""
        if event.phase == _WAIT or (self.quiet and _only_checks(event)):
            return False
        if event.state is ProgressState.FAILED:  # what comes now is another try
            self._shown = {key: value for key, value in self._shown.items() if key[0] != event.node}
            return True
        key = (event.node, event.phase)
        state, step, tenth = self._shown.get(key, (None, event.step, 0))
        reached = int(event.percent // PERCENT_STEP) if event.percent is not None else 0
        again = event.step not in {"", step}
        worth = state is not event.state or reached > (0 if again else tenth)
        self._shown[key] = (event.state, event.step or step, reached if again or worth else max(reached, tenth))
        return worth


def _only_checks(event: Progress) -> bool:
    """What a run tells that finds all as it should be: the fleet's own phases, and nodes that are ready."""
    return event.state is not ProgressState.FAILED and (event.node is None or event.phase == "ready")


def plain_line(event: Progress, now: datetime) -> str:
    """``21:47:03 decode/0 weights download 40% (about 38 min left)``, ``21:49:10 decode/0 ready``."""
    ended = event.state is ProgressState.DONE and event.phase in _ENDS
    phase = _ENDS[event.phase] if ended else event.phase
    parts = [now.astimezone(UTC).strftime("%H:%M:%SZ"), str(event.node or "fleet"), phase]
    if event.state is not ProgressState.RUNNING and not ended:
        parts.append(str(event.state))
    parts += [event.step] if event.step else []
    parts += [f"{event.percent:.0f}%"] if event.percent is not None else []
    line = " ".join(parts)
    line += f": {event.message}" if event.message else ""
    return line + (f" (about {duration(event.eta_seconds)} left)" if (event.eta_seconds or 0) >= 1 else "")


def summary(board: Board, *, succeeded: bool) -> str:
    """``5 nodes ready in 2 min``, ``5 nodes gone in 9 s``, or ``3 of 5 nodes finished in 9 s, 1 failed: decode/1``."""
    nodes = board.node_rows()
    took = duration(board.elapsed)
    if succeeded:
        phases = {row.last.phase for row in nodes}
        end = _ENDS[phases.pop()] if len(phases) == 1 and phases <= _ENDS.keys() else "done"
        return f"{count(len(nodes), 'node')} {end} in {took}"
    failed = [row.node for row in nodes if row.failed and row.node]
    line = f"{sum(row.finished for row in nodes)} of {count(len(nodes), 'node')} finished in {took}"
    return line + (f", {len(failed)} failed: {named(failed)}" if failed else "")


class BoardView:
    """The live picture: as many rows as the terminal has lines; what does not fit is folded into counts."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = max(1, (options.max_height or console.height) - 3)
        yield board_view(self._board, room, width=options.max_width, ascii_only=options.ascii_only)


def board_view(board: Board, room: int, *, width: int = 80, ascii_only: bool = False) -> RenderableType:
    """At most ``room`` lines for rows, plus up to two that tell what was folded away."""
    rows = board.rows()
    finished = [row for row in rows if row.finished]
    if len(rows) > room:
        rows = [row for row in rows if not row.finished]
    shown = rows if len(rows) <= room else sorted(rows, key=_urgency)[:room]
    parts: list[RenderableType] = [_grid(board, shown, width, ascii_only)]
    if len(shown) < len(board.rows()):
        folded = [row for row in rows if row not in shown]
        parts.append(_folded(folded, len(finished) if finished and finished[0] not in shown else 0))
    return Group(*parts)


def _urgency(row: Row) -> tuple[bool, bool, bool, NodeName]:
    """Failed rows first, then the fleet's own, then nodes at work; by name, so that the picture holds still."""
    return (not row.failed, row.node is not None, row.last.phase == _WAIT, row.node or NodeName("", 0))


def _grid(board: Board, rows: list[Row], width: int, ascii_only: bool) -> Table:
    grid = Table.grid(padding=(0, 1), expand=False)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=18)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=max(12, width - 48))
    grid.add_column(no_wrap=True, justify="right", style=DIM)
    for row in rows:
        grid.add_row(*_cells(board, row, ascii_only))
    return grid


def _cells(board: Board, row: Row, ascii_only: bool) -> tuple[Text, ...]:
    event = row.last
    running = event.state is ProgressState.RUNNING
    percent = f" {event.percent:.0f}%" if event.percent is not None and running else ""
    detail = event.message if row.failed or not event.step else event.step
    return (
        text(_MARKS[event.state][ascii_only], _STYLES[event.state]),
        text(row.node or "fleet", "bold"),
        text(event.phase, _STYLES[event.state]),
        text(detail + percent),
        text(_times(board, row) if running else ""),
    )


def _times(board: Board, row: Row) -> str:
    """``3 min 20 s, ~38 min left``; no estimate once it has run out."""
    elapsed = duration(board.now - row.phase_started)
    left = 0.0 if row.ready_at is None else row.ready_at - board.now
    return elapsed if left < 1 else f"{elapsed}, ~{duration(left)} left"


def _folded(rows: list[Row], finished: int) -> Text:
    """``and 12 more: 8 weights, 4 boot; 34 finished``."""
    phases = [row.last.phase for row in rows]
    counted = ", ".join(f"{phases.count(phase)} {phase}" for phase in dict.fromkeys(phases))
    parts = [f"and {len(rows)} more: {counted}"] if rows else []
    parts += [f"{finished} finished"] if finished else []
    return text("; ".join(parts), DIM)
