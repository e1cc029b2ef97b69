"""What a rented node, other users of this machine and a reader of our output get to see."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from gpufleet.domain.jobs import JobEvent
from gpufleet.providers.mock import billing
from gpufleet.remote.jobs import run_job
from gpufleet.routing.client import Endpoint
from tests.e2e.conftest import _network
from tests.e2e.world import BATCH_KEY, CHAT_KEY, VIP_KEY, World, free_port, small_fleet, world

TOKEN = "hf_SECRETTOKEN0123456789"
SECRETS = (TOKEN, CHAT_KEY, VIP_KEY, BATCH_KEY)


@contextmanager
def _process_lists() -> Iterator[set[str]]:
    """Every command line that any process of this machine had meanwhile and that holds a secret."""
    leaks: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            for line in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    text = line.read_bytes().decode(errors="replace")
                except OSError:
                    continue
                if any(secret in text for secret in (*SECRETS, "PRIVATE KEY")):
                    leaks.add(text)
            over.wait(0.03)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield leaks
    finally:
        over.set()
        watcher.join(10)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, set[str], str]]:
    """A fleet with every kind of secret, the leaks while it came up, and what ``up`` said."""
    fleet = small_fleet(free_port())
    fleet["router"]["tls"] = "self-signed"
    fleet["model"] = {"hf_token": "file:hf.token"}
    with world(tmp_path_factory.mktemp("x"), _network(__name__), fleet) as made:
        (made.root / "hf.token").write_text(TOKEN)
        (made.root / "hf.token").chmod(0o600)
        with _process_lists() as leaks:
            up = made.run("up", "--yes")
            made.run("ask", "hello")
        assert up.returncode == 0, up.stderr
        yield made, leaks, up.stdout + up.stderr


Guarded = tuple[World, set[str], str]


def test_no_secret_is_in_a_process_list_while_a_fleet_comes_up(guarded: Guarded) -> None:
    assert guarded[1] == set()


def test_no_secret_is_left_in_a_file_or_in_what_up_said(guarded: Guarded) -> None:
    made, _, said = guarded
    holders = [p for p in made.state.rglob("*") if p.is_file() for s in SECRETS if s.encode() in p.read_bytes()]
    assert holders == []
    assert not any(secret in said for secret in SECRETS)
    assert not any(secret in (made.root / "fleet.lock.yaml").read_text() for secret in SECRETS)


def test_no_process_that_lives_on_carries_a_secret(guarded: Guarded) -> None:
    """Containers, HAProxy and what shares the weights."""
    made = guarded[0]
    found = []
    for pid in made.processes():
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        found += [pid for s in (*SECRETS, "PRIVATE KEY") if s.encode() in environment]
    assert found == []


def test_docker_inspect_shows_no_secret(guarded: Guarded) -> None:
    made = guarded[0]
    said = made.ok("exec", "all", "--", "docker inspect $(docker ps -aq)")
    assert "gf-test-" in said
    assert not any(secret in said for secret in SECRETS)


def test_private_keys_and_sockets_are_the_owners_alone(guarded: Guarded) -> None:
    made = guarded[0]
    sockets = [*made.state.rglob("*.sock")]
    assert sockets
    for path in [*sockets, *made.state.rglob("*.pem"), *made.state.rglob("id_ed25519"), *made.state.rglob("keys.map")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_the_administration_of_the_routers_behind_is_not_reachable(guarded: Guarded) -> None:
    import httpx

    made = guarded[0]
    headers = {"authorization": f"Bearer {CHAT_KEY}"}
    with httpx.Client(
        base_url=f"https://{made.fleet['router']['listen']}", verify=False, headers=headers, trust_env=False
    ) as client:
        for path in ("/add_worker", "/remove_worker", "/workers", "/metrics", "/stats", "/;csv", "/v1/../add_worker"):
            assert client.post(path, json={}).status_code == 404, path


def test_a_wrong_key_is_not_repeated_with_debug(guarded: Guarded) -> None:
    made = guarded[0]
    done = made.run("ask", "hello", "--debug", env={"GF_TEST_CHAT": "sk-wrong-key-9876543210"})
    assert done.returncode == 8
    assert "Traceback" in done.stderr
    assert "sk-wrong-key" not in done.stdout + done.stderr


def test_a_changed_key_is_installed_by_the_next_up(guarded: Guarded) -> None:
    made = guarded[0]
    new = {"GF_TEST_VIP": "sk-new-key-9876543210"}
    assert made.run("ask", "-c", "vip", "hello", env=new).returncode == 8
    assert made.run("up", "--yes", env=new).returncode == 0
    assert made.run("ask", "-c", "vip", "hello", env=new).returncode == 0
    assert made.run("ask", "-c", "vip", "hello").returncode == 8


def test_a_literal_secret_is_not_repeated_with_debug(fresh: World) -> None:
    fresh.fleet["router"]["channels"]["chat"]["key"] = "correct-horse-battery"
    fresh.write()
    done = fresh.run("up", "--yes", "--debug")
    assert done.returncode == 3
    assert "correct-horse" not in done.stdout + done.stderr


def test_an_endpoint_does_not_show_its_key() -> None:
    assert "sk-secret" not in repr(Endpoint("http://x", "sk-secret", "glm5"))


def test_a_state_directory_that_others_may_write_in_is_refused(fresh: World) -> None:
    fresh.state.mkdir()
    fresh.state.chmod(0o777)
    done = fresh.run("up", "--yes")
    assert done.returncode == 2
    assert f"chmod 700 {fresh.state}" in done.stderr
    assert billing.read(fresh.market) == []


@pytest.mark.parametrize("name", ["s" * 80, "with space"])
def test_a_state_directory_that_haproxy_cannot_use_is_refused_early(fresh: World, name: str) -> None:
    done = fresh.run("up", "--yes", env={"GPUFLEET_STATE": str(fresh.root / name)})
    assert done.returncode != 0
    assert "HAProxy cannot keep its files" in done.stderr
    assert "GPUFLEET_STATE" in done.stderr
    assert billing.read(fresh.root / name / "mock") == []


class Hostile:
    """A node that answers a job with events of its own making."""

    name = "decode/0"
    workdir = "/w"

    def __init__(self, *events: dict[str, object]) -> None:
        self._lines = [b"gf-run 1\n", *(json.dumps(e).encode() + b"\n" for e in events)]

    def run(self, command: str, *, stdin: bytes = b"", timeout: float = 60.0) -> None: ...

    def stream(self, command: str, *, stdin: bytes = b"", until: object = None) -> Iterator[bytes]:
        yield from self._lines

    def close(self) -> None: ...


class Nothing:
    name, script, environment, digest = "check", "", "", ""


def test_a_node_cannot_steer_the_terminal_or_break_the_record(fresh: World) -> None:
    escape = "\x1b]0;owned\x07\x1b[2J595.45\r\x9b31m"
    machine = Hostile(
        {"kind": "fingerprint", "job": "check", "data": {"driver": escape, "x\x1b[2Jy": "z: [\n"}},
        {"kind": "job-done", "job": "check"},
    )
    events: list[JobEvent] = []
    run_job(machine, Nothing(), on_event=events.append, stop=threading.Event(), deadline_seconds=10)  # type: ignore[arg-type]
    facts = dict(events[0].data)
    assert facts == {"driver": "595.4531m", "xy": "z: [\n"}
    assert yaml.safe_load(yaml.safe_dump(facts)) == facts


def test_another_users_directory_is_refused(tmp_path: Path) -> None:
    from gpufleet.engine.paths import check_private
    from gpufleet.errors import UsageError

    if os.getuid() != 0:
        pytest.skip("needs root to give a directory away")
    os.chown(tmp_path, 65534, 65534)
    check_private(tmp_path / "missing")
    with pytest.raises(UsageError, match="belongs to another user"):
        check_private(tmp_path)
