"""The mock market with its real node program behind it."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.domain.market import Instance, InstanceState
from gpufleet.providers.mock import control, processes
from gpufleet.providers.mock.options import MockOptions
from gpufleet.remote.keys import ensure_keypair
from gpufleet.remote.ssh import wait_for_ssh
from tests.providers.places import Place, eventually, in_state, market_of, mock_place, rent


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = mock_place(tmp_path, node_command=list(MockOptions().node_command), time_scale=1000)
    yield place
    control.stop_all(market_of(place))
    assert control.running(market_of(place)) == []


def test_a_rented_node_answers_over_ssh_with_the_key_that_the_market_tells(place: Place, tmp_path: Path) -> None:
    keys = ensure_keypair(tmp_path / "keys")
    provider = place.open()
    made = rent(provider, ssh_public_key=keys.public_text)
    instance = in_state(provider, made.instance_id, InstanceState.RUNNING)
    assert instance.ssh is not None
    machine = wait_for_ssh(
        instance.ssh,
        name="decode/0",
        private_key_file=keys.private_file,
        pinned_host_key=instance.ssh.host_key,
        deadline_seconds=30,
        stop=threading.Event(),
    )
    try:
        assert machine.run('echo "$TWIN_ROOT"').stdout.strip() == instance.ssh.workdir.removesuffix("/work")
        machine.run("setsid sleep 3600 >/dev/null 2>&1 </dev/null & echo")
        _kill_node(instance)
        provider.get(made.instance_id)
        eventually(lambda: _answers(instance))
        assert len(control.running(market_of(place))) >= 2, "what was detached lives on"
        provider.terminate(made.instance_id)
        in_state(provider, made.instance_id, InstanceState.TERMINATED)
        assert control.running(market_of(place)) == []
    finally:
        machine.close()


def test_a_dead_node_runs_and_does_not_answer(place: Place) -> None:
    provider = place.open(faults=[{"at": "boot", "kind": "dead"}])
    instance = in_state(provider, rent(provider).instance_id, InstanceState.RUNNING)
    eventually((market_of(place) / "nodes" / instance.instance_id / "bin").is_dir)
    assert not _answers(instance)


def _kill_node(instance: Instance) -> None:
    assert instance.ssh is not None
    for pid in processes.by_root([instance.ssh.workdir.removesuffix("/work")]).popitem()[1]:
        if b"gpufleet.twin.node" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: not _answers(instance))


def _answers(instance: Instance) -> bool:
    assert instance.ssh is not None
    try:
        socket.create_connection((instance.ssh.host, instance.ssh.port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True
