"""The playbooks that start, reload and stop HAProxy, run as jobs on this machine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpufleet.domain.jobs import JobEvent
from gpufleet.playbook.compile import compile_job
from gpufleet.playbook.load import load_shipped
from gpufleet.remote.errors import JobFailed
from gpufleet.remote.jobs import run_job
from gpufleet.remote.local import LocalMachine
from gpufleet.routing.config import RouterConfig, Server
from gpufleet.routing.files import router_inputs
from gpufleet.routing.runtime import RuntimeApi
from gpufleet.routing.tls import certificate_only, self_signed
from tests.routing.harness import CHANNELS, KEYS, Backend, Background, free_address, until


class Place:
    """A router's directory and the jobs that act on it."""

    def __init__(self, root: Path, native: Backend) -> None:
        host, port = free_address()
        self.root = root
        self.config = RouterConfig(
            fleet="demo",
            listen_host=host,
            listen_port=port,
            directory=str(root / "router"),
            tls=False,
            cells=(),
            native=(Server("native", *native.address),),
            channels=CHANNELS,
            spill_queue=4,
            queue_timeout_s=60,
            without_max_tokens_native=True,
        )
        self.machine = LocalMachine(root / "work")

    @property
    def api(self) -> RuntimeApi:
        return RuntimeApi(Path(self.config.directory) / "haproxy.sock")

    def up(self, *, pem: str = "", keys: dict[str, str] = KEYS, **changes: Any) -> tuple[JobEvent, ...]:
        self.config = replace(self.config, **changes)
        return self._run("router", router_inputs(self.config, keys), {"GF_PEM": pem})

    def down(self, grace: int = 5) -> tuple[JobEvent, ...]:
        return self._run("router-stop", {"GF_ROUTER_DIR": self.config.directory, "GF_GRACE": str(grace)}, {})

    def ask(self, **fields: Any) -> httpx.Response:
        url = f"http://{self.config.listen_host}:{self.config.listen_port}/v1/chat/completions"
        headers = {"authorization": f"Bearer {KEYS['chat']}"}
        return httpx.post(url, json={"messages": [], **fields}, headers=headers, timeout=30, trust_env=False)

    def pids(self) -> list[str]:
        """Processes of this router."""
        found = subprocess.run(["pgrep", "-f", self.config.directory], capture_output=True, text=True, check=False)
        return found.stdout.split()

    def _run(self, playbook: str, values: dict[str, str], secrets: dict[str, str]) -> tuple[JobEvent, ...]:
        common = {"GF_WORK": self.machine.workdir, "GF_FLEET": "demo", "GF_NODE": "this machine"}
        job = compile_job(load_shipped(playbook), job_name=playbook, values={**common, **values}, secrets=secrets)
        return run_job(
            self.machine, job, on_event=lambda _: None, stop=threading.Event(), reconnect=None, deadline_seconds=100
        )


@pytest.fixture
def native() -> Iterator[Backend]:
    backend = Backend("native").start()
    yield backend
    backend.stop()


@pytest.fixture
def place(native: Backend) -> Iterator[Place]:
    root = Path(tempfile.mkdtemp(prefix="gfp-", dir="/tmp"))
    made = Place(root, native)
    yield made
    for pid in made.pids():
        subprocess.run(["kill", "-9", pid], check=False, capture_output=True)
    shutil.rmtree(root, ignore_errors=True)


def steps(events: tuple[JobEvent, ...], kind: str) -> list[str]:
    return [event.step for event in events if str(event.kind) == kind]


def test_it_starts_serves_is_left_alone_when_nothing_changed_and_stops(place: Place) -> None:
    place.up()
    assert place.ask().status_code == 200
    pid = place.api.info()["Pid"]
    again = place.up()
    assert "run" in steps(again, "step-skipped")
    assert place.api.info()["Pid"] == pid
    place.down()
    assert place.pids() == []
    assert sorted(path.name for path in Path(place.config.directory).iterdir()) == ["haproxy.log"]


def test_its_files_are_private_and_hold_no_key(place: Place) -> None:
    place.up(tls=True, pem=self_signed("127.0.0.1", datetime.now(UTC)))
    directory = Path(place.config.directory)
    assert directory.stat().st_mode & 0o777 == 0o700
    for path in directory.iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
    everything = [path for path in place.root.rglob("*") if path.is_file()]
    for key in KEYS.values():
        assert not any(key in path.read_text(errors="replace") for path in everything)
    private_key = [path for path in everything if "PRIVATE KEY" in path.read_text(errors="replace")]
    place.down()
    assert directory / "endpoint.pem" in private_key
    assert not (directory / "endpoint.pem").exists()


def test_a_change_is_loaded_without_cutting_a_stream(place: Place, native: Backend) -> None:
    place.up()
    native.gate.clear()
    stream = Background(lambda: place.ask(stream=True))
    until(lambda: native.running == 1, "the stream runs")
    pid = place.api.info()["Pid"]
    place.up(queue_timeout_s=9)
    assert place.api.info()["Pid"] != pid
    native.gate.set()
    assert "[DONE]" in stream.result().text
    assert place.ask().status_code == 200


def test_a_changed_key_is_known_after_a_reload(place: Place) -> None:
    place.up()
    place.up(keys={**KEYS, "chat": "a-new-key"})
    assert place.ask().status_code == 401


def test_a_drained_server_stays_drained(place: Place) -> None:
    place.up()
    place.api.drain("native")
    place.up(queue_timeout_s=1)
    assert [server.status for server in place.api.servers()] == ["DRAIN"]


def test_a_drained_server_that_has_moved_is_found_at_its_new_port(place: Place, native: Backend) -> None:
    """HAProxy's state file would bring back the port that the server had when it was drained."""
    (server,) = place.config.native
    place.up(native=(replace(server, port=free_address()[1]),))
    place.api.drain("native")
    place.up(native=(server,))
    place.api.ready("native")
    until(lambda: place.ask().status_code == 200, "it answers at its new port")


def test_it_comes_back_after_a_crash(place: Place) -> None:
    place.up()
    for pid in place.pids():
        os.kill(int(pid), 9)
    until(lambda: not place.pids(), "it is dead")
    place.up()
    assert place.ask().status_code == 200


def test_a_port_in_use_is_named(place: Place) -> None:
    address = (place.config.listen_host, place.config.listen_port)
    with socket.create_server(address), pytest.raises(JobFailed) as caught:
        place.up()
    assert f"{address[0]}:{address[1]} is in use by another program" in caught.value.message
    assert place.pids() == []
    place.up()
    assert place.ask().status_code == 200


def test_a_port_in_use_by_another_haproxy_is_named_too(place: Place, native: Backend) -> None:
    place.up()
    other = Place(place.root / "other", native)
    with pytest.raises(JobFailed, match="is in use by another program"):
        other.up(listen_host=place.config.listen_host, listen_port=place.config.listen_port)


def test_moving_to_a_port_in_use_leaves_the_old_one_serving(place: Place) -> None:
    place.up()
    old = place.config
    with socket.create_server(free_address()) as taken, pytest.raises(JobFailed, match="is in use"):
        place.up(listen_host=taken.getsockname()[0], listen_port=taken.getsockname()[1])
    place.config = old
    assert place.ask().status_code == 200
    place.up()
    assert place.ask().status_code == 200


def test_an_address_of_another_machine_is_named(place: Place) -> None:
    with pytest.raises(JobFailed, match=r"203\.0\.113\.7:\d+ is no address of this machine"):
        place.up(listen_host="203.0.113.7")


def test_stopping_what_never_ran_is_fine(place: Place) -> None:
    place.down()


def test_a_stream_gets_its_time_to_end(place: Place, native: Backend) -> None:
    place.up()
    native.gate.clear()
    stream = Background(lambda: place.ask(stream=True))
    until(lambda: native.running == 1, "the stream runs")
    threading.Timer(0.5, native.gate.set).start()
    place.down(grace=20)
    assert "[DONE]" in stream.result().text


def test_a_stream_that_does_not_end_is_cut_after_its_time(place: Place, native: Backend) -> None:
    place.up()
    native.gate.clear()
    stream = Background(lambda: place.ask(stream=True))
    until(lambda: native.running == 1, "the stream runs")
    place.down(grace=1)
    assert place.pids() == []
    with pytest.raises(httpx.HTTPError):
        stream.result()


def test_tls_is_served(place: Place) -> None:
    import ssl

    pem = self_signed("127.0.0.1", datetime.now(UTC))
    place.up(tls=True, pem=pem)
    context = ssl.create_default_context(cadata=certificate_only(pem))
    context.check_hostname = False
    url = f"https://{place.config.listen_host}:{place.config.listen_port}/health"
    assert httpx.get(url, verify=context, trust_env=False).status_code == 200
