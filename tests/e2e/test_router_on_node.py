"""HAProxy on a rented node: the same endpoint, TLS by itself, and gone with its node."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.engine import api
from gpufleet.engine.session import open_session
from gpufleet.providers.mock import billing
from tests.e2e.conftest import _network
from tests.e2e.openssh import lab, nothing_runs
from tests.e2e.world import World, eventually, free_port, small_fleet, world
from tests.remote.sshd import SSHD


def _fleet() -> dict[str, Any]:
    fleet = small_fleet(free_port())
    port = fleet["router"]["listen"].rpartition(":")[2]
    fleet["router"] |= {"host": "prefill/0", "listen": f"0.0.0.0:{port}"}
    return fleet


@pytest.fixture(scope="module")
def on_node(short_folder: Callable[[], Path]) -> Iterator[World]:
    with world(short_folder(), _network(__name__), _fleet()) as made:
        made.ok("up", "--yes")
        yield made


def _routers(world: World) -> list[str]:
    """The command line of every HAProxy master of this world."""
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() for pid in world.processes()]
    return [line for line in lines if line.startswith("haproxy")]


def _node(world: World, name: str) -> dict[str, Any]:
    return next(n for n in world.json("status")["nodes"] if n["node"] == name)


def test_it_listens_on_the_nodes_address_with_tls(on_node: World) -> None:
    endpoint = on_node.json("status")["endpoint"]
    port = on_node.fleet["router"]["listen"].rpartition(":")[2]
    assert endpoint["url"] == f"https://{_node(on_node, 'prefill/0')['address']}:{port}"
    assert endpoint["up"] is True
    assert len(endpoint["tls_fingerprint"].split(":")) == 32


def test_its_files_are_on_the_node_and_none_are_here(on_node: World) -> None:
    instance = _node(on_node, "prefill/0")["instance_id"]
    there = on_node.market / "nodes" / instance / "work" / "router"
    assert (there / "keys.map").exists()
    assert {oct(p.stat().st_mode & 0o777) for p in there.iterdir() if p.suffix != ".sock"} == {"0o600"}
    assert not (on_node.state / "fleets" / "test" / "router").exists()
    assert all(str(there) in line for line in _routers(on_node))


def test_both_channels_are_answered(on_node: World) -> None:
    assert on_node.json("ask", "--channel", "chat", "hello")["served_by"].startswith("cell-decode-")
    assert on_node.json("ask", "--channel", "batch", "hello")["served_by"] == "native"


def test_status_does_not_know_its_cells_and_plan_asks_the_node(on_node: World) -> None:
    assert {c["up"] for c in on_node.json("status")["cells"]} == {None}
    with open_session(on_node.file, state_dir=on_node.state) as session:
        plan = api.make_plan(session)
        from gpufleet.engine.router import asked_front

        with asked_front(session) as front:
            assert {c.name: c.up for c in front.cells()} == {
                "cell-decode-0": True,
                "cell-decode-1": True,
                "native": True,
            }
    assert not plan.changes


def test_a_second_up_keeps_everything_and_the_router_running(on_node: World) -> None:
    before, charges = _routers(on_node), billing.read(on_node.market)
    on_node.ok("up", "--yes")
    assert _routers(on_node) == before
    assert {c.instance_id for c in billing.read(on_node.market)} == {c.instance_id for c in charges}


def test_no_haproxy_is_needed_on_this_machine(tmp_path: Path) -> None:
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    with (
        world(tmp_path, _network("nohaproxy"), _fleet()) as made,
        open_session(made.file, state_dir=made.state) as session,
    ):
        import os

        from gpufleet.engine import front

        os.environ.update({k: v for k, v in made.env.items() if k.startswith("GF_TEST")})
        which = shutil.which
        front.shutil.which = lambda name, **_: None if name == "haproxy" else which(name)  # type: ignore[assignment]
        try:
            api.check(session)
        finally:
            front.shutil.which = which


@pytest.mark.slow
def test_it_moves_to_another_place_and_nothing_listens_at_the_old_one(
    short_folder: Callable[[], Path],
) -> None:
    with world(short_folder(), _network("moves"), small_fleet(free_port())) as made:
        for host in ("local", "prefill/0", "native/0", "local"):
            # On the mock a wildcard is the whole machine, so that each place needs a port of its own.
            address = "127.0.0.1" if host == "local" else "0.0.0.0"
            made.fleet["router"] |= {"host": host, "listen": f"{address}:{free_port()}"}
            made.write()
            made.ok("up", "--yes")
            assert len({line.split("-f ")[1] for line in _routers(made)}) == 1, host
            assert made.json("ask", "hello")["finish_reason"]
        made.ok("down", "--yes")
        assert _routers(made) == []


@pytest.mark.slow
@pytest.mark.skipif(not Path(SSHD).exists(), reason="openssh-server is not installed")
def test_on_a_leased_host_it_is_stopped_before_the_host_is_given_back(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Even when the file has come to name another place since."""
    with lab(tmp_path_factory.mktemp("lab")) as room:
        fleet = room.fleet("routed")
        fleet["router"] |= {"host": "prefill/0", "listen": f"0.0.0.0:{free_port()}"}
        made = room.operator("op", fleet)
        made.ok("up", "--yes")
        assert made.json("ask", "hello")["finish_reason"]
        (host,) = [h for h in room.hosts if (h.workdir / "router" / "keys.map").exists()]
        made.fleet["router"] |= {"host": "native/0"}
        made.write()
        made.ok("down", "--yes")
        nothing_runs(room.hosts)
        assert not (host.workdir / "router" / "keys.map").exists()
        assert not (host.workdir / "router" / "endpoint.pem").exists()
        assert all(h.alive for h in room.hosts)


def test_down_ends_the_router_with_its_node(short_folder: Callable[[], Path]) -> None:
    with world(short_folder(), _network("down"), _fleet()) as made:
        made.ok("up", "--yes")
        made.ok("down", "--yes")
        assert all(c.ended is not None for c in billing.read(made.market))
        eventually(lambda: made.processes() == [], what="an end of all processes")
        status = made.json("status")
        assert status["endpoint"]["up"] is False
