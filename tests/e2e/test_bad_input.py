"""Wrong input, each a clear line and its own exit code, and nothing rented."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from gpufleet.providers.mock import billing
from tests.e2e.world import World


def _fleet(change: Callable[[dict], None]) -> Callable[[World], None]:  # type: ignore[type-arg]
    def apply(world: World) -> None:
        change(world.fleet)
        world.write()

    return apply


def _text(text: str) -> Callable[[World], None]:
    return lambda world: world.file.write_text(text) and None


CASES: list[tuple[str, Callable[[World], None], int, str]] = [
    ("not YAML", _text("name: [unclosed"), 3, "fleet.yaml"),
    ("unknown key", _fleet(lambda f: f.update(modle={})), 3, "model"),
    ("wrong GPU", _fleet(lambda f: f["pools"]["prefill"].update(gpu="H100:8")), 3, "893"),
    ("decode on Hopper", _fleet(lambda f: f["pools"]["decode"].update(gpu="H200:8")), 3, "B200:8"),
    ("empty file", _text(""), 3, "empty"),
    ("a 10 MB file", _text("x: " + "y" * 10_000_000), 3, "MB"),
    ("a name with spaces", _fleet(lambda f: f.update(name="my fleet")), 3, "my fleet"),
    ("a literal key", _fleet(lambda f: f["router"]["channels"]["chat"].update(key="sk-secret")), 3, "reference"),
    ("an unknown provider", _fleet(lambda f: f["provider"].update(use="nowhere")), 3, "nowhere"),
    ("an unknown provider option", _fleet(lambda f: f["provider"].update(time_scal=3)), 3, "time_scale"),
    (
        "a missing secret",
        _fleet(lambda f: f["router"]["channels"]["chat"].update(key="env:GF_TEST_UNSET")),
        3,
        "GF_TEST_UNSET",
    ),
    ("more than the market has", _fleet(lambda f: f["pools"]["native"].update(count=500)), 4, "native"),
    ("over budget", _fleet(lambda f: f.update(budget={"max_usd_per_hour": 1})), 3, "max_usd_per_hour"),
]


@pytest.mark.parametrize(("change", "code", "said"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_up_refuses(fresh: World, change: Callable[[World], None], code: int, said: str) -> None:
    change(fresh)
    done = fresh.run("up", "--yes")
    assert done.returncode == code, done.stderr
    first = done.stderr.strip().splitlines()[0]
    assert first.startswith("error: ")
    assert said in done.stderr
    assert "sk-secret" not in done.stderr
    assert "Traceback" not in done.stderr
    assert billing.read(fresh.market) == []


def test_an_unreachable_provider_is_named(fresh: World) -> None:
    fresh.fleet["provider"]["faults"] = [{"at": "offers", "kind": "auth", "times": 100}]
    fresh.write()
    done = fresh.run("up", "--yes")
    assert done.returncode == 4
    assert "mock" in done.stderr


def test_status_of_an_unreachable_provider_tells_what_is_recorded_and_names_it(fresh: World) -> None:
    fresh.ok("up", "--yes")
    fresh.fleet["provider"]["faults"] = [{"at": "inventory", "kind": "transient", "times": 1000}]
    fresh.write()
    status = fresh.json("status")
    assert {node["serving"] for node in status["nodes"]} == {"ready"}
    assert status["problems"] == ["provider mock: the market answered 503; what is shown may be old"]


def test_up_without_yes_and_without_a_terminal_refuses(fresh: World) -> None:
    done = fresh.run("up")
    assert done.returncode == 7
    assert "--yes" in done.stderr
    assert billing.read(fresh.market) == []


@pytest.mark.parametrize("command", [["logs", "decode/9"], ["ssh", "nowhere/0"], ["exec", "decode/0", "--", "true"]])
def test_a_node_that_is_not_there_is_a_usage_error(fresh: World, command: list[str]) -> None:
    done = fresh.run(*command)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")


def test_a_port_in_use_is_named_before_anything_is_rented(fresh: World) -> None:
    host, _, port = fresh.fleet["router"]["listen"].rpartition(":")
    with socket.create_server((host, int(port))):
        done = fresh.run("up", "--yes")
    assert done.returncode != 0
    assert port in done.stderr
    assert billing.read(fresh.market) == []


def test_an_unreadable_file_and_a_folder(fresh: World) -> None:
    assert fresh.run("validate", "missing.yaml").returncode == 3
    (fresh.root / "folder.yaml").mkdir()
    assert fresh.run("validate", "folder.yaml").returncode == 3
