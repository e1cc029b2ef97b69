"""The same fleet on machines that somebody owns, behind real OpenSSH servers: leased, brought up, given back."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpufleet.catalog.shipped import names
from gpufleet.domain.nodes import NodeName
from gpufleet.engine.api import ssh_command
from gpufleet.engine.session import open_session
from gpufleet.playbook.load import load_shipped
from tests.e2e.openssh import ONE_CELL, Host, Lab, lab, nothing_runs
from tests.e2e.world import World
from tests.remote.sshd import SSHD, write_key

NODES = ["decode/0", "decode/1", "native/0", "prefill/0", "prefill/1"]
ONE_CELL_NODES = ["decode/0", "native/0", "prefill/0"]

pytestmark = pytest.mark.skipif(not Path(SSHD).exists(), reason="openssh-server is not installed")


@dataclass(frozen=True)
class Served:
    """A fleet that is up, and the hosts it holds."""

    lab: Lab
    world: World


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """For tests that must leave the fleet as it is."""
    with lab(tmp_path_factory.mktemp("lab")) as made, user(made, "served", made.fleet("one")) as world:
        world.ok("up", "--yes")
        yield Served(made, world)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Five hosts that every test finds and leaves free."""
    with lab(tmp_path_factory.mktemp("lab")) as made:
        yield made


@pytest.fixture
def own_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """No hosts yet, for tests that need other ones."""
    with lab(tmp_path_factory.mktemp("lab"), ()) as made:
        yield made


@contextmanager
def user(at: Lab, folder: str, fleet: dict[str, Any]) -> Iterator[World]:
    """Somebody with a fleet file; what they started ends with the block."""
    world = at.operator(folder, fleet)
    try:
        yield world
    finally:
        world.run("down", "--yes")
        world.clean_up()


def serving(world: World) -> list[str]:
    return sorted(n["node"] for n in world.json("status")["nodes"] if n["serving"] == "ready")


def addresses(world: World) -> dict[str, str]:
    return {n["node"]: n["address"] for n in world.json("status")["nodes"]}


def containers(world: World) -> list[str]:
    return sorted(world.ok("exec", "all", "--", "docker", "ps", "-q", "--no-trunc").split())


def test_from_bare_hosts_to_a_served_fleet_and_back(room: Lab) -> None:
    with user(room, "journey", room.fleet()) as world:
        world.ok("up", "--yes")
        status = world.json("status")
        assert serving(world) == NODES
        assert status["endpoint"]["up"] is True
        assert Decimal(status["bill"]["usd_per_hour"]) == 0

        chat = world.json("ask", "--channel", "chat", "count to 5")
        batch = world.json("ask", "--channel", "batch", "count to 5")
        assert chat["served_by"].startswith("cell-decode-")
        assert batch["served_by"] == "native"
        assert chat["text"] == batch["text"]

        before = [host.finished_steps() for host in room.hosts]
        assert {a["kind"] for a in world.json("plan")["actions"]} == {"keep"}
        world.ok("up", "--yes")
        assert [host.finished_steps() for host in room.hosts] == before

        done = world.run("down", "--yes")
        assert done.returncode == 0, done.stderr
        assert "$0.00" in done.stdout
        assert "release" in done.stderr
        assert "terminate" not in done.stderr
        assert world.json("status")["nodes"] == []
        are_free(room.hosts)


@pytest.mark.parametrize("name", ["two", "one"])
def test_an_operator_with_another_state_directory_is_told_who_holds_a_host(served: Served, name: str) -> None:
    """Also under the same fleet name: what runs for one of them is not the other's to clean up."""
    before = containers(served.world)
    with user(served.lab, f"theirs-{name}", served.lab.fleet(name)) as theirs:
        refused = theirs.run("up", "--yes")
        assert refused.returncode == 5
        assert "this host is leased: owner=" in refused.stderr
        assert "fleet=one node=" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert theirs.json("status")["nodes"] == []
        theirs.ok("down", "--yes")
    assert containers(served.world) == before
    assert all("fleet=one\n" in host.holder.read_text() for host in served.lab.hosts)
    assert served.world.json("ask", "--channel", "chat", "count to 3")["finish_reason"] == "stop"


def test_a_second_fleet_of_one_state_directory_is_told_who_holds_the_hosts(served: Served) -> None:
    text = (
        served.world.file.read_text()
        .replace("name: one", "name: two")
        .replace("listen: 127.0.0.1:", "listen: 127.0.0.2:")
    )
    (served.world.root / "two.yaml").write_text(text)
    refused = served.world.run("up", "two.yaml", "--yes")
    assert refused.returncode == 4
    assert f"host {served.lab.hosts[2].address}:2222 is leased for decode/" in refused.stderr
    assert "of fleet one" in refused.stderr


def test_ssh_opens_a_shell_with_the_listed_key(served: Served) -> None:
    host = next(h for h in served.lab.hosts if h.address == addresses(served.world)["decode/0"])
    with open_session(served.world.file, state_dir=served.world.state) as session:
        argv = ssh_command(session, NodeName("decode", 0))
    done = subprocess.run([*argv, "echo in:$TWIN_ROOT"], check=False, capture_output=True, text=True, timeout=30)
    assert f"in:{host.root}" in done.stdout, done.stderr


def test_the_login_key_is_copied_nowhere(served: Served) -> None:
    secret = (served.lab.root / "login_key").read_bytes().splitlines()[2]
    places = [served.world.state, *(host.root for host in served.lab.hosts)]
    files = [path for place in places for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
    assert [path for path in files if secret in path.read_bytes()] == []


@pytest.mark.report("skypilot 1614")
def test_a_host_key_that_changes_is_refused_and_nothing_runs_there(served: Served) -> None:
    host = next(h for h in served.lab.hosts if h.address == addresses(served.world)["native/0"])
    with host.rekeyed():
        refused = served.world.run("exec", "native/0", "--", "touch", str(host.root / "ran"))
        assert refused.returncode == 5
        assert "shows another host key" in refused.stderr
        assert "gpufleet down" in refused.stderr
        assert "someone may be in between" in refused.stderr
    assert not (host.root / "ran").exists()
    served.world.ok("exec", "native/0", "--", "touch", str(host.root / "ran"))
    assert (host.root / "ran").exists()


def test_hosts_that_cannot_be_used_are_named_when_there_is_no_spare(own_lab: Lab) -> None:
    """One shows another host key than the listed one, one is down. Nothing runs on the first; the rest serves."""
    for gpu in ONE_CELL:
        own_lab.add(gpu)
    dead, stranger = own_lab.hosts[1], own_lab.hosts[2]
    fleet = own_lab.fleet(cells=1)
    for listed, host in zip(fleet["provider"]["hosts"], own_lab.hosts, strict=True):
        listed["host_key"] = host.host_key
    fleet["provider"]["hosts"][2]["host_key"] = write_key(own_lab.root / "some_other_key")
    dead.stop()
    with user(own_lab, "a", fleet) as world:
        done = world.run("up", "--yes")
        assert done.returncode == 5
        error, told_next = [line for line in done.stderr.splitlines() if line.startswith(("error: ", "  next: "))]
        assert f"{stranger.address}:2222 shows another host key" in error
        assert f"no SSH at {dead.listed['user']}@{dead.address}:2222" in error
        assert "nothing else can be had" in error
        assert "gpufleet down" in told_next
        assert list(stranger.workdir.iterdir()) == []
        assert stranger.processes() == []


@pytest.mark.slow
def test_a_host_that_cannot_be_cleaned_up_is_given_back_and_named(own_lab: Lab) -> None:
    for gpu in ONE_CELL:
        own_lab.add(gpu)
    with user(own_lab, "a", own_lab.fleet(cells=1)) as world:
        world.ok("up", "--yes")
        lost = next(h for h in own_lab.hosts if h.address == addresses(world)["native/0"])
        with lost.rekeyed():
            down = world.run("down", "--yes")
        assert down.returncode == 0, down.stderr
        assert "native/0 release failed: given back, but not cleaned up" in down.stderr
        are_free([host for host in own_lab.hosts if host is not lost])


@pytest.mark.report("dstack 1976")
def test_bad_hosts_are_named_and_spares_take_their_places(own_lab: Lab) -> None:
    """One is down, one has lost a GPU; each is told, left as it was, and replaced."""
    broken = own_lab.add("B200", gpu_count_visible=7)
    dead = own_lab.add("H200")
    for gpu in ONE_CELL:
        own_lab.add(gpu)
    dead.stop()
    fleet = own_lab.fleet(cells=1)
    for listed in fleet["provider"]["hosts"][2:]:
        listed["usd_per_hour"] = 1  # the bad ones are cheaper, and so tried first
    for pool in fleet["pools"].values():
        pool["max_usd_per_hour"] = 1
    with user(own_lab, "a", fleet) as world:
        done = world.run("up", "--yes")
        assert done.returncode == 0, done.stderr
        assert f"{dead.address}:2222" in done.stderr
        assert "8 x B200 needed, seen: 7 x" in done.stderr
        assert "trying the next offer" in done.stderr
        assert serving(world) == ONE_CELL_NODES
        assert not {broken.address, dead.address} & set(addresses(world).values())
        are_free([broken])


@pytest.mark.slow
@pytest.mark.parametrize("mark", ["native/0 check", "decode/0 convert", "decode/0 cell"])
def test_up_killed_and_run_again_repeats_no_finished_step(own_lab: Lab, mark: str) -> None:
    for gpu in ONE_CELL:
        own_lab.add(gpu)
    with user(own_lab, "a", own_lab.fleet(cells=1)) as world:
        kill_at(world, mark, "up", "--yes")
        finished = [once_only(host) for host in own_lab.hosts]
        leases = [key_of(host) for host in own_lab.hosts]
        world.ok("up", "--yes")
        assert serving(world) == ONE_CELL_NODES
        for host, before in zip(own_lab.hosts, finished, strict=True):
            assert {step: at for step, at in once_only(host).items() if step in before} == before
        assert all(key_of(host) == lease for host, lease in zip(own_lab.hosts, leases, strict=True) if lease)
        assert world.json("ask", "--channel", "chat", "count to 3")["finish_reason"] == "stop"
    are_free(own_lab.hosts)


@pytest.mark.slow
def test_down_after_a_killed_up_stops_what_went_on_without_it(own_lab: Lab) -> None:
    for gpu in ONE_CELL:
        own_lab.add(gpu, time_scale=100)
    with user(own_lab, "a", own_lab.fleet(cells=1)) as world:
        kill_at(world, "weights", "up", "--yes")
        assert any(host.processes() for host in own_lab.hosts)
        world.ok("down", "--yes")
        are_free(own_lab.hosts)


@pytest.mark.slow
def test_a_killed_down_goes_on_and_the_hosts_serve_the_next_fleet(room: Lab) -> None:
    with user(room, "first", room.fleet("first")) as first, user(room, "second", room.fleet("second")) as second:
        first.ok("up", "--yes")
        kill_at(first, "confirm", "down", "--yes")
        first.ok("down", "--yes")
        are_free(room.hosts)
        second.ok("up", "--yes")
        assert serving(second) == NODES
        assert all("fleet=second\n" in host.holder.read_text() for host in room.hosts)
    are_free(room.hosts)


def are_free(hosts: list[Host]) -> None:
    """Nothing of ours runs there, nobody holds them, and they are up."""
    nothing_runs(hosts)
    assert not any(host.holder.exists() for host in hosts)
    assert all(host.alive for host in hosts)


def key_of(host: Host) -> str:
    """Which rental the host's lease file names; empty when it is free."""
    lines = host.holder.read_text().splitlines() if host.holder.exists() else []
    return next((line for line in lines if line.startswith("key=")), "")


def kill_at(world: World, mark: str, *command: str) -> None:
    """``kill -9`` of a command as soon as its progress says ``mark``."""
    process = world.start(*command)
    assert process.stdout is not None
    assert process.stderr is not None
    threading.Thread(target=process.stdout.read, daemon=True).start()
    said = next((line for line in process.stderr if mark in line), None)
    process.kill()
    process.wait()
    assert said is not None, f"{mark} never came"


def once_only(host: Host) -> dict[str, int]:
    """Steps that are done on the host and that no later run repeats."""
    return {step: at for step, at in host.finished_steps().items() if not runs_each_time(step)}


def runs_each_time(done: str) -> bool:
    """Whether the step of ``jobs/JOB/done/STEP`` is marked so in its playbook; a job is named after its playbook."""
    _, job, _, name = done.split("/")
    playbook = max((known for known in names("playbooks") if job.startswith(known)), key=len)
    return next(step.always for step in load_shipped(playbook).steps if step.name == name)
