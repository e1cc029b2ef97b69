"""The command of a rental that is itself a container: an SSH server that takes one key."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpufleet.serving.images import RoleImage
from gpufleet.serving.inside import MAX_START_CHARACTERS, image_environment, start_of, swallows_command

SECRET = "hf_0123456789abcdef"


@dataclass
class Container:
    """The start text, run as a provider would run it, in a folder of its own."""

    root: Path
    port: int

    @property
    def key(self) -> Path:
        return self.root / "key"

    def start(self) -> subprocess.Popen[bytes]:
        public = self.key.with_suffix(".pub").read_text()
        env = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.root / "home"),
            "GF_WORK": str(self.root / "work"),
            "GF_SSHD_PORT": str(self.port),
            "CUDA_VERSION": "13.2 b",
            "HF_TOKEN": SECRET,
            "VLLM_API_KEY": SECRET,
        }
        text = start_of(public)
        return subprocess.Popen(["/bin/sh", "-c", text], env=env, start_new_session=True)

    def ssh(self, key: Path, command: str) -> subprocess.CompletedProcess[str]:
        options = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes")
        argv = ["ssh", "-p", str(self.port), "-i", str(key), "-o", "IdentitiesOnly=yes", *options, "127.0.0.1", command]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=20)

    def until_listening(self) -> None:
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            else:
                return


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    (tmp_path / "home").mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        made = Container(tmp_path, probe.getsockname()[1])
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(made.key)], check=True)
    yield made


@pytest.fixture
def running(container: Container) -> Iterator[Container]:
    process = container.start()
    try:
        container.until_listening()
        yield container
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(10) == 0


def test_the_fleets_key_logs_in_and_no_other(running: Container, tmp_path: Path) -> None:
    assert running.ssh(running.key, "echo in").stdout == "in\n"
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    assert running.ssh(other, "echo in").returncode == 255


def test_what_the_image_says_of_programs_is_kept_and_secrets_are_not(running: Container) -> None:
    kept = (running.root / "work/image.env").read_text()
    assert SECRET not in kept
    line = f". {running.root}/work/image.env; echo $CUDA_VERSION"
    shown = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    assert shown.stdout == "13.2 b\n"


def test_where_a_server_listens_already_it_only_adds_the_key(running: Container) -> None:
    (running.root / "home/.ssh/authorized_keys").unlink()
    second = running.start()
    assert second.wait(20) == 0
    assert (
        running.key.with_suffix(".pub").read_text().strip() in (running.root / "home/.ssh/authorized_keys").read_text()
    )


def test_a_login_gets_the_images_environment(tmp_path: Path) -> None:
    (tmp_path / "conda").mkdir()
    (tmp_path / "image.env").write_text("export CUDA_HOME='/usr/local/cuda'\n")
    image = RoleImage("base", "tag", "", (), (), str(tmp_path / "conda"))
    text = image_environment(image, str(tmp_path)) + 'echo "$CUDA_HOME ${PATH%%:*}"'
    done = subprocess.run(["sh", "-eu", "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == f"/usr/local/cuda {tmp_path}/conda\n"


def test_without_what_was_kept_a_login_is_left_as_it_is(tmp_path: Path) -> None:
    image = RoleImage("base", "tag", "", (), (), "/nowhere/at/all")
    text = image_environment(image, str(tmp_path)) + 'echo "$PATH"'
    done = subprocess.run(["sh", "-eu", "-c", text], capture_output=True, text=True, check=True, env={"PATH": "/bin"})
    assert done.stdout == "/bin\n"


def test_it_fits_what_the_strictest_provider_takes_even_with_a_long_key() -> None:
    assert len(start_of("ssh-rsa " + "A" * 724 + " somebody@somewhere")) <= MAX_START_CHARACTERS


def test_a_key_cannot_become_a_command(tmp_path: Path) -> None:
    text = start_of(f"ssh-ed25519 AAAA'; touch {tmp_path}/hit; '")
    assert subprocess.run(["sh", "-n", "-c", text], check=True).returncode == 0
    first = text.split("\nwork=")[0]
    subprocess.run(["sh", "-c", first], check=True)
    assert not (tmp_path / "hit").exists()


@pytest.mark.parametrize(
    ("image", "swallows"),
    [
        ("vllm/vllm-openai:v0.26.0", True),
        ("docker.io/vllm/vllm-openai@sha256:" + "a" * 64, True),
        ("ghcr.io/tile-ai/tilert:cu132-latest", False),
        ("example.com/mine/vllm/vllm-openai-ssh:1", False),
    ],
)
def test_images_that_run_vllm_whatever_they_are_told_are_known(image: str, swallows: bool) -> None:
    assert swallows_command(image) is swallows
