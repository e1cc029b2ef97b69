"""Progress: one line per node on a terminal, few plain lines elsewhere, and a summary."""

from __future__ import annotations

import io
import threading
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from rich.console import Console

from gpufleet.domain.nodes import NodeName
from gpufleet.domain.progress import Progress, ProgressState
from gpufleet.domain.status import Bill
from gpufleet.reporting.board import Board
from gpufleet.reporting.interrupt import interruption
from gpufleet.reporting.live import LiveView, board_view, plain_line, summary
from gpufleet.reporting.words import duration
from tests.reporting.values import bill

DECODE = NodeName("decode", 0)
NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
DONE, FAILED = ProgressState.DONE, ProgressState.FAILED


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def plain_lines(events: list[Progress]) -> list[str]:
    out = io.StringIO()
    with LiveView(Console(file=out, width=40), now=lambda: NOON) as view:
        for event in events:
            view.sink(event)
    return out.getvalue().splitlines()


def drawn(board: Board, room: int, width: int = 80) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(board_view(board, room, width=width))
    return out.getvalue().splitlines()


def test_without_a_terminal_each_phase_is_one_line_with_its_time() -> None:
    lines = plain_lines(
        [Progress(DECODE, "boot"), Progress(DECODE, "boot", message="still"), Progress(DECODE, "check")]
    )
    assert lines[:2] == ["12:00:00Z decode/0 boot", "12:00:00Z decode/0 check"]


def test_without_a_terminal_a_download_is_a_line_per_ten_percent() -> None:
    events = [Progress(DECODE, "weights", step="download", percent=p / 4) for p in range(400)]
    lines = plain_lines(events)[:-1]
    assert len(lines) == 10
    assert lines[4] == "12:00:00Z decode/0 weights download 40%"


def test_a_new_step_starts_its_percentage_again() -> None:
    events = [Progress(DECODE, "weights", step=step, percent=p) for step in ("download", "verify") for p in (5, 95)]
    assert [line.split()[-1] for line in plain_lines(events)[:-1]] == ["5%", "95%", "95%"]


def test_a_failure_is_always_told_even_when_the_phase_is_known() -> None:
    lines = plain_lines([Progress(DECODE, "check"), Progress(DECODE, "check", FAILED, message="7 of 8 GPUs")])
    assert lines[1] == "12:00:00Z decode/0 check failed: 7 of 8 GPUs"


def test_a_long_plain_line_is_not_wrapped() -> None:
    assert plain_line(Progress(DECODE, "check", FAILED, message="x" * 200), NOON) in plain_lines(
        [Progress(DECODE, "check", FAILED, message="x" * 200)]
    )


def test_what_concerns_the_whole_fleet_is_named_so() -> None:
    assert plain_line(Progress(None, "router", DONE), NOON) == "12:00:00Z fleet router done"


def test_a_plain_line_tells_what_is_left() -> None:
    assert plain_line(Progress(DECODE, "convert", eta_seconds=2280), NOON).endswith("convert (about 38 min left)")


def test_the_summary_counts_nodes_and_names_the_failed_ones() -> None:
    clock = Clock()
    board = Board(clock)
    board.update(Progress(None, "router", DONE))
    board.update(Progress(DECODE, "ready", DONE))
    board.update(Progress(NodeName("decode", 1), "check", FAILED))
    clock.seconds = 130
    assert summary(board, succeeded=False) == "1 of 2 nodes finished in 2 min 10 s, 1 failed: decode/1"


def test_the_end_of_a_failed_node_does_not_hide_that_it_failed() -> None:
    board = Board(Clock())
    for event in (
        Progress(DECODE, "check", FAILED, message="no GPUs"),
        Progress(DECODE, "terminate"),
        Progress(DECODE, "confirm", DONE),
    ):
        board.update(event)
    assert "no GPUs" in drawn(board, room=10)[0]
    assert summary(board, succeeded=False) == "0 of 1 node finished in 0 s, 1 failed: decode/0"


def test_a_run_that_succeeded_leaves_no_node_as_running() -> None:
    out = io.StringIO()
    with LiveView(Console(file=out, force_terminal=True, width=80, height=24)) as view:
        view.sink(Progress(DECODE, "terminate"))
    last_picture = out.getvalue().splitlines()[-2]
    assert "✓" in last_picture
    assert "1 node done in" in out.getvalue()


def test_a_run_that_failed_counts_what_was_reached() -> None:
    out = io.StringIO()
    view = LiveView(Console(file=out, width=80), now=lambda: NOON)
    with pytest.raises(KeyboardInterrupt), view:
        view.sink(Progress(DECODE, "boot"))
        raise KeyboardInterrupt
    assert "0 of 1 node finished" in out.getvalue()


def test_a_node_shows_phase_step_percent_elapsed_and_time_left() -> None:
    clock = Clock()
    board = Board(clock)
    board.update(Progress(DECODE, "weights", step="download", percent=40, eta_seconds=600))
    clock.seconds = 60
    (line,) = drawn(board, room=10)
    assert line.split() == ["·", "decode/0", "weights", "download", "40%", "1", "min,", "~9", "min", "left"]


def test_an_estimate_that_has_run_out_is_not_shown() -> None:
    clock = Clock()
    board = Board(clock)
    board.update(Progress(DECODE, "serve", eta_seconds=30))
    clock.seconds = 90
    assert "left" not in drawn(board, room=10)[0]


def test_an_event_without_percentage_keeps_that_of_its_step_but_not_of_the_last_one() -> None:
    board = Board(Clock())
    board.update(Progress(DECODE, "weights", step="download", percent=40))
    board.update(Progress(DECODE, "weights", message="shard 12"))
    assert board.rows()[0].last.percent == 40
    board.update(Progress(DECODE, "weights", step="verify"))
    assert board.rows()[0].last.percent is None


def test_fifty_nodes_fit_a_screen_and_nothing_is_hidden_without_being_counted() -> None:
    board = Board(Clock())
    for index in range(30):
        board.update(Progress(NodeName("decode", index), "ready", DONE))
    for index in range(30, 50):
        board.update(Progress(NodeName("decode", index), "weights", eta_seconds=index))
    board.update(Progress(NodeName("decode", 49), "check", FAILED, message="bad GPU"))
    lines = drawn(board, room=10)
    assert len(lines) == 11
    assert "decode/49" in lines[0]
    assert lines[-1] == "and 10 more: 10 weights; 30 finished"


def test_what_does_not_fit_is_chosen_by_name_and_waiting_nodes_give_way_first() -> None:
    board = Board(Clock())
    for index in range(6):
        board.update(Progress(NodeName("decode", index), "wait" if index < 2 else "serve", eta_seconds=index))
    lines = drawn(board, room=4)
    assert [line.split()[1] for line in lines[:-1]] == ["decode/2", "decode/3", "decode/4", "decode/5"]
    assert lines[-1] == "and 2 more: 2 wait"


def test_finished_nodes_stay_visible_while_there_is_room() -> None:
    board = Board(Clock())
    board.update(Progress(DECODE, "ready", DONE))
    board.update(Progress(NodeName("decode", 1), "serve"))
    assert len(drawn(board, room=10)) == 2


@pytest.mark.parametrize("width", [40, 80])
def test_a_live_line_never_wraps(width: int) -> None:
    board = Board(Clock())
    board.update(Progress(NodeName("p" * 60, 0), "weights", step="s" * 60, percent=1, eta_seconds=9999))
    assert len(drawn(board, room=10, width=width)) == 1


def test_a_terminal_gets_an_animation_that_ends_with_the_summary() -> None:
    out = io.StringIO()
    with LiveView(Console(file=out, force_terminal=True, width=80, height=24)) as view:
        view.sink(Progress(DECODE, "ready", DONE))
    assert "decode/0" in out.getvalue()
    assert "1 node ready in" in out.getvalue()


def test_a_run_that_takes_down_says_how_many_are_gone() -> None:
    events = [Progress(DECODE, "terminate"), Progress(DECODE, "confirm", DONE)]
    assert plain_lines(events)[1:] == ["12:00:00Z decode/0 gone", "1 node gone in 0 s"]


def test_a_quiet_run_that_found_nothing_to_do_leaves_no_word() -> None:
    out = io.StringIO()
    view = LiveView(Console(file=out, width=80), now=lambda: NOON)
    view.quiet = True
    with view:
        for event in (Progress(None, "router"), Progress(DECODE, "ready", DONE), Progress(None, "ready", DONE)):
            view.sink(event)
    assert out.getvalue() == ""


def test_phases_that_run_side_by_side_have_a_line_each_and_not_one_per_change() -> None:
    steps = [Progress(DECODE, phase, percent=p) for p in (1, 2, 12) for phase in ("image", "weights")]
    assert [line.split()[2:] for line in plain_lines(steps)[:-1]] == [
        ["image", "1%"],
        ["weights", "1%"],
        ["image", "12%"],
        ["weights", "12%"],
    ]


def test_a_node_that_waits_for_others_is_no_news_without_a_terminal() -> None:
    assert plain_lines([Progress(DECODE, "serve"), Progress(DECODE, "wait")])[:-1] == ["12:00:00Z decode/0 serve"]


def test_another_try_after_a_failure_is_told_like_the_first() -> None:
    tries = [Progress(DECODE, "rent"), Progress(DECODE, "check", FAILED), Progress(DECODE, "rent")]
    assert sum("rent" in line for line in plain_lines(tries)) == 2


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = io.StringIO()
    with LiveView(Console(file=out, force_terminal=True, width=80), now=lambda: NOON) as view:
        view.sink(Progress(DECODE, "boot"))
    assert "12:00:00Z decode/0 boot" in out.getvalue()


def test_a_closed_stderr_does_not_stop_the_run() -> None:
    out = io.StringIO()
    view = LiveView(Console(file=out, width=80))
    out.close()
    with view:
        view.sink(Progress(DECODE, "boot"))


def test_events_may_come_from_many_threads() -> None:
    out = io.StringIO()
    view = LiveView(Console(file=out, width=80), now=lambda: NOON)

    def feed(index: int) -> None:
        for phase in ("boot", "check", "serve"):
            view.sink(Progress(NodeName("decode", index), phase))

    threads = [threading.Thread(target=feed, args=(i,)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(out.getvalue().splitlines()) == 60


def test_an_interruption_tells_what_exists_its_price_and_the_two_next_commands() -> None:
    stop = interruption(bill(running=True), "fleet.yaml")
    assert stop.message == "interrupted; 1 rental running for $41.50/h"
    assert stop.where == "decode/0 (mock i-1)"
    assert stop.hint is not None
    assert "gpufleet up fleet.yaml" in stop.hint
    assert "gpufleet down fleet.yaml" in stop.hint
    assert stop.exit_code == 130


def test_an_interruption_of_a_large_fleet_stays_readable() -> None:
    (line,) = bill(running=True).lines
    many = Bill(tuple(replace(line, node=NodeName("decode", index)) for index in reversed(range(50))))
    told = interruption(many, "fleet.yaml")
    assert told.where is not None
    assert told.where.startswith("decode/0 (mock i-1), decode/1 ")
    assert told.where.endswith("and 42 more")
    assert "50 rentals running for $2,075.00/h" in told.message


def test_an_interruption_before_anything_was_rented_says_so() -> None:
    assert interruption(bill(), "fleet.yaml").message == "interrupted; nothing is rented"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (-5, "0 s"),
        (42, "42 s"),
        (200, "3 min 20 s"),
        (9600, "2 h 40 min"),
        (3600, "1 h"),
        (273600, "3 d 4 h"),
    ],
)
def test_durations_read_well(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
