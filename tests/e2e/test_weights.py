"""Converted weights are made once: kept in a store, handed from node to node, verified, and never taken on trust."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import _network
from tests.e2e.world import World, free_port, small_fleet, world

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def _fleet(store: Path) -> dict[str, Any]:
    fleet = small_fleet(free_port())
    return {**fleet, "model": {"revision": COMMIT}, "weights": {"store": str(store)}}


@pytest.fixture(scope="module")
def stored(short_folder: Callable[[], Path]) -> Iterator[World]:
    """A fleet that has been up, has filled its store, and is up again on new nodes."""
    root = short_folder()
    (root / "store").mkdir()
    with world(root, _network(__name__), _fleet(root / "store")) as made:
        made.ok("up", "--yes")
        made.ok("down", "--yes")
        made.ok("up", "--yes")
        yield made


def _log(made: World, node: str, job: str) -> str:
    return made.ok("logs", node, "--source", job)


def _converted(made: World, node: str) -> Path:
    instance = next(n["instance_id"] for n in made.json("status")["nodes"] if n["node"] == node)
    return made.market / "nodes" / instance / "work/weights/GLM-5.1-FP8-TileRT"


def test_the_second_fleet_pulls_what_the_first_one_converted(stored: World) -> None:
    assert "Converting weight layer" not in _log(stored, "decode/0", "weights-convert")
    assert _converted(stored, "decode/0").is_dir()
    assert not _converted(stored, "decode/0").with_name("GLM-5.1-FP8").exists()
    assert stored.json("ask", "--channel", "chat", "hello")["finish_reason"]


def test_the_other_decode_nodes_copy_inside_the_fleet(stored: World) -> None:
    left, right = (_converted(stored, f"decode/{i}") / "manifest.json" for i in (0, 1))
    assert left.read_bytes() == right.read_bytes()


def test_verify_reads_every_byte_and_names_what_is_damaged(stored: World) -> None:
    assert stored.json("weights", "verify") == {"action": "verify", "nodes": ["decode/0", "decode/1"]}
    shard = next(_converted(stored, "decode/1").glob("*-00002-of-*.safetensors"))
    was = shard.read_bytes()
    shard.write_bytes(was[:-1] + bytes([was[-1] ^ 1]))
    done = stored.run("weights", "verify")
    assert done.returncode == 5
    assert f"{shard.name} is not what the manifest says" in done.stderr
    assert "decode/1" in done.stderr
    assert shard.exists()
    shard.write_bytes(was)


def test_copy_brings_back_what_a_node_has_lost(stored: World) -> None:
    folder = _converted(stored, "decode/1")
    next(folder.glob("*-00002-of-*.safetensors")).unlink()
    stored.ok("weights", "copy", "decode/1")
    stored.ok("weights", "verify", "decode/1")


def test_weights_of_a_node_that_has_none_of_its_own_are_not_asked_for(stored: World) -> None:
    done = stored.run("weights", "convert", "prefill/0")
    assert done.returncode == 2
    assert "prefill/0 is no decode node" in done.stderr


def test_an_action_that_does_not_exist_is_answered_with_those_that_do(stored: World) -> None:
    done = stored.run("weights", "bake")
    assert done.returncode == 2
    assert "fetch|convert|verify|copy|pull|push" in done.stderr
