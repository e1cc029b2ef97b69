"""A fleet in rentals that are containers of the role's image, as Runpod's and Vast's are: no docker, no init system."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import _network
from tests.e2e.small import assert_down_and_even
from tests.e2e.test_gate import ask_many
from tests.e2e.world import World, free_port, small_fleet, world


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A gated prefill node that feeds two cells, and a native node, up."""
    fleet = small_fleet(free_port(), cells=2, runtime="inside")
    fleet["pools"]["prefill"] |= {"count": 1, "gate": "on"}
    with world(tmp_path_factory.mktemp("w"), _network(__name__), fleet) as made:
        made.ok("up", "--yes")
        yield made


def test_it_serves_both_channels(inside: World) -> None:
    chat = inside.json("ask", "--channel", "chat", "count to 5")
    batch = inside.json("ask", "--channel", "batch", "count to 5")
    assert chat["served_by"].startswith("cell-decode-")
    assert batch["served_by"] == "native"
    assert chat["text"] == batch["text"]


def test_two_cells_behind_one_gate_answer_at_once_each_with_its_own(inside: World) -> None:
    answers = ask_many(inside, 12)
    assert {what for _, what in answers} == {"own"}
    assert {by for by, _ in answers} == {"cell-decode-0", "cell-decode-1"}


def test_no_docker_is_there(inside: World) -> None:
    done = inside.run("exec", "fleet.yaml", "decode/0", "--", "command -v docker || echo none")
    assert "none" in done.stdout


def test_a_second_up_changes_nothing(inside: World) -> None:
    assert inside.run("up", "--yes").stderr.startswith("nothing to change")


def test_logs_are_shown_and_a_wrong_name_says_which_there_are(inside: World) -> None:
    assert "version 0.26.0 model" in inside.ok("logs", "fleet.yaml", "prefill/0", "--tail", "200")
    wrong = inside.run("logs", "fleet.yaml", "prefill/0", "--source", "nope")
    assert wrong.returncode == 2
    assert "gf-test-prefill-0" in wrong.stderr
    assert "gf-test-router-decode-0" in wrong.stderr


def test_a_program_that_dies_is_started_again(inside: World) -> None:
    root = node_root(inside, "native/0")
    (state,) = (root / "work/run").glob("gf-test-vllm-router-*/state")
    assert state.read_text() == "running 0\n"
    os.kill(listening_child(root, "vllm-router"), signal.SIGKILL)
    deadline = time.monotonic() + 30
    while state.read_text() != "running 1\n":
        assert time.monotonic() < deadline, state.read_text()
        time.sleep(0.05)
    assert inside.json("ask", "--channel", "batch", "count to 5")["text"]


def test_a_cell_moves_to_another_gated_prefill_node_and_its_old_router_stays_ended(inside: World) -> None:
    inside.fleet["pools"]["prefill"]["count"] = 2
    inside.write()
    inside.ok("up", "--yes")
    run = node_root(inside, "prefill/0") / "work/run"
    assert (run / "gf-test-router-decode-1/stopped").exists()
    assert not (run / "gf-test-router-decode-0/stopped").exists()
    assert {what for _, what in ask_many(inside, 6)} == {"own"}


def test_its_files_are_private(inside: World) -> None:
    run = node_root(inside, "decode/0") / "work/run/gf-test-decode-0"
    assert {path.stat().st_mode & 0o077 for path in run.iterdir()} == {0}
    assert "of-the-image" not in (run.parents[1] / "image.env").read_text()


def test_render_shows_the_program_itself(inside: World) -> None:
    assert inside.ok("render", "fleet.yaml", "launch", "decode/0").startswith("python3 -m tilert.pd_vllm.decode_server")


def test_down_leaves_nothing(inside: World) -> None:
    assert_down_and_even(inside)


def node_root(made: World, node: str) -> Path:
    """The mock's directory of a node."""
    instance = next(n["instance_id"] for n in made.json("status")["nodes"] if n["node"] == node)
    return made.market / "nodes" / str(instance)


def listening_child(root: Path, word: str) -> int:
    """The process of a node that runs a program, below its supervisor."""
    for folder in Path("/proc").iterdir():
        try:
            environ = (folder / "environ").read_bytes()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if f"TWIN_ROOT={root}".encode() in environ and word.encode() in command.split(b"\0")[:6]:
            return int(folder.name)
    raise AssertionError(f"no {word} runs in {root}")
