"""A prepared root serves a real OpenSSH server as well as the twin's own."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpufleet.twin import layout
from tests.twin.nodes import eventually, make_root, next_address


def test_preparing_twice_changes_nothing(tmp_path: Path) -> None:
    root = make_root(tmp_path / "root")
    before = {path: path.stat().st_mtime_ns for path in (root / "bin").iterdir()}
    layout.prepare_root(root, {})
    assert {path: path.stat().st_mtime_ns for path in (root / "bin").iterdir()} == before


def test_a_root_with_spaces_and_quotes_works(tmp_path: Path) -> None:
    root = make_root(tmp_path / "it's a root")
    assert subprocess.run([root / "bin/docker", "ps", "-q"], capture_output=True, check=True).stdout == b""


def test_the_command_prepares_a_root_that_has_a_node_file(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text("{}")
    subprocess.run([sys.executable, "-m", "gpufleet.twin.layout", str(tmp_path)], check=True)
    assert (
        subprocess.run([tmp_path / "bin/nvidia-smi", "-L"], capture_output=True, check=True).stdout.count(b"B200") == 8
    )


@pytest.mark.skipif(not Path("/usr/sbin/sshd").exists(), reason="openssh-server is not installed")
def test_a_real_ssh_server_finds_the_stand_ins(tmp_path: Path) -> None:
    root, address = make_root(tmp_path / "root"), next_address()
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    shutil.copy(tmp_path / "user.pub", tmp_path / "authorized_keys")
    (tmp_path / "sshd_config").write_text(
        f"ListenAddress {address}\nPort 2222\nHostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/authorized_keys\n"
        f"PidFile none\nStrictModes no\nUsePAM no\nSetEnv PATH={root}/bin:{layout.HOST_PATH} TWIN_ROOT={root}\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True) if os.geteuid() == 0 else None
    sshd = subprocess.Popen(["/usr/sbin/sshd", "-D", "-f", str(tmp_path / "sshd_config")], stderr=subprocess.DEVNULL)
    options = ["-q", "-F", "none", "-i", str(tmp_path / "user"), "-p", "2222", "-o", "UserKnownHostsFile=/dev/null"]
    command = ["ssh", *options, "-o", "StrictHostKeyChecking=no", f"{getpass.getuser()}@{address}"]
    try:
        eventually(lambda: subprocess.run([*command, "true"], check=False).returncode == 0, "a login")
        done = subprocess.run([*command, "docker run --rm -i ubuntu cat"], input=b"hi", capture_output=True, check=True)
        assert done.stdout == b"hi"
    finally:
        sshd.terminate()
        sshd.wait()
