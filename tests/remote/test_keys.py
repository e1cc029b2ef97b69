from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpufleet.domain.market import SshEndpoint
from gpufleet.errors import GpufleetError
from gpufleet.remote.keys import ensure_keypair
from gpufleet.remote.shell import known_hosts_line, ssh_argv
from tests.remote.sshd import Sshd


def test_the_key_is_made_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    first, second = ensure_keypair(tmp_path / "ssh"), ensure_keypair(tmp_path / "ssh")
    assert first == second
    assert first.public_text.startswith("ssh-ed25519 AAAA")
    assert first.private_file.stat().st_mode & 0o777 == 0o600


def test_two_runs_at_once_get_the_same_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        pairs = set(pool.map(ensure_keypair, [tmp_path / "ssh"] * 8))
    assert len(pairs) == 1
    assert len(list((tmp_path / "ssh").iterdir())) == 1


def test_a_file_that_is_no_key_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "id_ed25519").write_text("mine")
    with pytest.raises(GpufleetError, match="not an ed25519 private key"):
        ensure_keypair(tmp_path)
    assert (tmp_path / "id_ed25519").read_text() == "mine"


def test_the_systems_ssh_logs_in_with_the_key_and_the_pinned_host_key(
    server: Sshd, key_file: Path, tmp_path: Path
) -> None:
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text(known_hosts_line(server.endpoint, server.host_key))
    argv = ssh_argv(server.endpoint, key_file, known_hosts, "echo hello")
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert done.stdout == "hello\n"


def test_the_systems_ssh_refuses_a_host_that_is_not_pinned(server: Sshd, key_file: Path, tmp_path: Path) -> None:
    (tmp_path / "known_hosts").touch()
    argv = ssh_argv(server.endpoint, key_file, tmp_path / "known_hosts", "echo hello")
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 255
    assert "hello" not in done.stdout


def test_port_22_is_written_without_brackets() -> None:
    assert known_hosts_line(SshEndpoint("10.0.0.1"), "ssh-ed25519 AAAA x") == "10.0.0.1 ssh-ed25519 AAAA\n"
