from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.remote.ssh import SshMachine, connect
from tests.remote.sshd import SSHD, Sshd, start_sshd, write_key

collect_ignore_glob = [] if Path(SSHD).exists() else ["test_ssh*.py", "test_jobs*.py"]


@pytest.fixture(scope="session")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("client")
    public = write_key(folder / "id")
    (folder / "id.pub").write_text(public)
    return folder / "id"


@pytest.fixture
def server(tmp_path: Path, key_file: Path) -> Iterator[Sshd]:
    sshd = start_sshd(tmp_path / "node", key_file.with_suffix(".pub").read_text())
    yield sshd
    sshd.drop_connections()
    sshd.stop()


@pytest.fixture
def node(server: Sshd, key_file: Path) -> Iterator[SshMachine]:
    machine = connect(server.endpoint, name="decode/0", private_key_file=key_file)
    yield machine
    machine.close()
