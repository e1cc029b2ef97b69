"""A node behind a jump host: the same key, a pin for each of the two."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.domain.market import SshEndpoint
from gpufleet.remote.errors import ConnectionLost, HostKeyChanged, LoginRefused
from gpufleet.remote.shell import known_hosts_line, ssh_argv
from gpufleet.remote.ssh import connect
from tests.remote.sshd import Sshd, start_sshd, write_key


@pytest.fixture
def head(tmp_path: Path, key_file: Path) -> Iterator[Sshd]:
    sshd = start_sshd(tmp_path / "head", key_file.with_suffix(".pub").read_text())
    yield sshd
    sshd.drop_connections()
    sshd.stop()


@pytest.fixture
def behind(server: Sshd, head: Sshd) -> SshEndpoint:
    return replace(server.endpoint, jump=head.endpoint)


def test_commands_run_behind_the_head_and_both_keys_are_told(
    behind: SshEndpoint, server: Sshd, head: Sshd, key_file: Path
) -> None:
    machine = connect(behind, name="decode/0", private_key_file=key_file)
    data = os.urandom(300_000)
    assert b"".join(machine.stream("cat", stdin=data)) == data
    assert machine.run('echo "$SSH_CONNECTION"').stdout.split()[2] == server.host
    assert machine.host_key.split() == server.host_key.split()
    assert str(machine.jump_host_key).split() == head.host_key.split()
    machine.close()


def test_a_head_that_shows_another_key_is_refused(behind: SshEndpoint, key_file: Path, tmp_path: Path) -> None:
    assert behind.jump is not None
    pinned = replace(behind, jump=replace(behind.jump, host_key=write_key(tmp_path / "other")))
    with pytest.raises(HostKeyChanged, match="jump host"):
        connect(pinned, name="decode/0", private_key_file=key_file)


def test_a_node_that_shows_another_key_is_refused(behind: SshEndpoint, key_file: Path, tmp_path: Path) -> None:
    with pytest.raises(HostKeyChanged):
        connect(behind, name="d", private_key_file=key_file, pinned_host_key=write_key(tmp_path / "other"))


def test_what_is_not_there_behind_the_head_is_a_lost_connection(behind: SshEndpoint, key_file: Path) -> None:
    with pytest.raises(ConnectionLost, match="no way on to"):
        connect(replace(behind, port=1), name="decode/0", private_key_file=key_file)


def test_a_head_that_does_not_take_the_key_is_named(behind: SshEndpoint, tmp_path: Path) -> None:
    write_key(tmp_path / "stranger")
    with pytest.raises(LoginRefused, match="jump host"):
        connect(behind, name="decode/0", private_key_file=tmp_path / "stranger")


def test_a_head_that_dies_ends_the_connection(behind: SshEndpoint, head: Sshd, key_file: Path) -> None:
    machine = connect(behind, name="decode/0", private_key_file=key_file)
    head.drop_connections()
    with pytest.raises(ConnectionLost):
        machine.run("sleep 5", timeout=20)
    machine.close()


def test_the_systems_ssh_goes_the_same_way_with_the_same_pins(
    behind: SshEndpoint, server: Sshd, head: Sshd, key_file: Path, tmp_path: Path
) -> None:
    assert behind.jump is not None
    pinned = replace(behind, jump=replace(behind.jump, host_key=head.host_key))
    known = tmp_path / "known_hosts"
    known.write_text(known_hosts_line(pinned, server.host_key))
    done = subprocess.run(
        ssh_argv(pinned, key_file, known, "echo here"),
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.stdout.strip() == "here", done.stderr
    known.write_text(known_hosts_line(behind, server.host_key))
    refused = subprocess.run(
        ssh_argv(pinned, key_file, known, "echo here"),
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert refused.returncode == 255
