"""The twin's SSH server, asked by real clients."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from tests.twin.nodes import SshNode, eventually, processes, running_node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshNode]:
    with running_node(tmp_path_factory.mktemp("node") / "root") as up:
        yield up


@pytest.fixture
def client(node: SshNode) -> Iterator[paramiko.SSHClient]:
    with node.connect() as connection:
        yield connection


def ask(client: paramiko.SSHClient, command: str, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    """Exit status, stdout and stderr of a command."""
    channel = client.get_transport().open_session()
    channel.exec_command(command)

    def feed() -> None:
        with contextlib.suppress(OSError):  # the command has ended without reading it all
            channel.sendall(stdin)
            channel.shutdown_write()

    feeder = threading.Thread(target=feed)
    feeder.start()
    out, err = channel.makefile("rb").read(), channel.makefile_stderr("rb").read()
    feeder.join()
    return channel.recv_exit_status(), out, err


def system_ssh(node: SshNode, *more: str) -> list[str]:
    """The command line of the machine's own ssh client."""
    options = ["-q", "-F", "none", "-i", f"{node.root.parent}/id_ed25519", "-p", "2222"]
    options += ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
    return ["ssh", *options, *more, f"root@{node.address}"]


def test_a_command_keeps_its_streams_apart_and_tells_its_status(client: paramiko.SSHClient) -> None:
    assert ask(client, "echo out; echo err >&2; exit 7") == (7, b"out\n", b"err\n")


def test_stand_ins_come_first_on_the_path(client: paramiko.SSHClient, node: SshNode) -> None:
    assert ask(client, "for name in docker nvidia-smi hf pip; do command -v $name; done")[1].decode().splitlines() == [
        f"{node.root}/bin/{name}" for name in ("docker", "nvidia-smi", "hf", "pip")
    ]


def test_a_command_sees_nothing_of_the_environment_that_started_the_node(client: paramiko.SSHClient) -> None:
    names = {line.partition(b"=")[0].decode() for line in ask(client, "env")[1].splitlines()}
    assert names <= {"PATH", "HOME", "TWIN_ROOT", "LANG", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "SHLVL", "_"}


def test_a_command_starts_in_the_home_directory(client: paramiko.SSHClient, node: SshNode) -> None:
    assert ask(client, "pwd; echo $HOME")[1].decode().split() == [f"{node.root}/home"] * 2


def test_binary_data_passes_both_ways_unchanged(client: paramiko.SSHClient) -> None:
    data = os.urandom(3_000_000)
    assert ask(client, "cat", data) == (0, data, b"")


def test_input_that_nobody_reads_does_not_hold_a_command_up(client: paramiko.SSHClient) -> None:
    assert ask(client, "exec <&-; echo done", b"x" * 200_000)[:2] == (0, b"done\n")


def test_commands_of_a_millisecond_are_answered_every_time(client: paramiko.SSHClient) -> None:
    client.get_transport().sock.setsockopt(6, 1, 1)  # TCP_NODELAY
    assert [ask(client, f"exit {n % 5}")[0] for n in range(60)] == [n % 5 for n in range(60)]


def test_a_command_killed_by_a_signal_has_no_exit_status(client: paramiko.SSHClient) -> None:
    assert ask(client, "kill -9 $$")[0] == -1


def test_an_eleventh_session_is_refused_until_another_ends(client: paramiko.SSHClient) -> None:
    transport = client.get_transport()
    held = [transport.open_session() for _ in range(10)]
    for channel in held:
        channel.exec_command("cat")
    with pytest.raises(paramiko.ChannelException):
        transport.open_session()
    held[0].close()
    eventually(lambda: ask_or_none(client) == b"again\n", "another session")


def ask_or_none(client: paramiko.SSHClient) -> bytes | None:
    try:
        return ask(client, "echo again")[1]
    except paramiko.ChannelException:
        return None


def test_an_unknown_key_is_refused(node: SshNode, tmp_path: Path) -> None:
    stranger = paramiko.Ed25519Key.from_private_key_file(str(_other_key(tmp_path)))
    with paramiko.SSHClient() as client, pytest.raises(paramiko.AuthenticationException):
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        client.connect(node.address, 2222, "root", pkey=stranger, look_for_keys=False, allow_agent=False)


def _other_key(folder: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "other")], check=True)
    return folder / "other"


def test_a_password_is_never_asked_for(node: SshNode) -> None:
    with paramiko.Transport((node.address, 2222)) as transport:
        transport.start_client(timeout=20)
        with pytest.raises(paramiko.BadAuthenticationType) as refusal:
            transport.auth_password("root", "secret")
    assert refusal.value.allowed_types == ["publickey"]


def test_a_dropped_connection_hangs_up_its_commands_but_not_those_in_a_session_of_their_own(node: SshNode) -> None:
    client = node.connect()
    client.get_transport().open_session().exec_command("setsid sleep 71 >/dev/null 2>&1 & exec sleep 72")
    eventually(lambda: processes(node.root, "71") and processes(node.root, "72"), "starting both")
    client.close()
    eventually(lambda: not processes(node.root, "72"), "the hang-up")
    assert processes(node.root, "71")


def test_a_killed_client_hangs_up_too(node: SshNode) -> None:
    client = subprocess.Popen([*system_ssh(node), "exec sleep 73"], stdin=subprocess.DEVNULL)
    eventually(lambda: processes(node.root, "73"), "starting")
    client.kill()
    client.wait()
    eventually(lambda: not processes(node.root, "73"), "the hang-up")


def test_the_machines_own_ssh_client_works(node: SshNode) -> None:
    done = subprocess.run([*system_ssh(node), "cat; exit 3"], input=b"\0\xff", capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (3, b"\0\xff")


def test_a_terminal_has_a_size_and_a_job_on_it_can_be_typed_to(client: paramiko.SSHClient) -> None:
    channel = client.get_transport().open_session()
    channel.get_pty("xterm", width=101, height=33)
    channel.invoke_shell()
    channel.sendall(b"stty size; tty | cut -c1-9; echo $((40+2)); exit 5\n")
    text = channel.makefile("rb").read().decode()
    assert "33 101" in text and "/dev/pts/" in text and "42" in text
    assert channel.recv_exit_status() == 5


def test_forwarding_is_refused(client: paramiko.SSHClient) -> None:
    with pytest.raises(paramiko.ChannelException):
        client.get_transport().open_channel("direct-tcpip", ("127.0.0.1", 22), ("127.0.0.1", 1))


def test_the_host_key_is_the_one_given(tmp_path: Path) -> None:
    key = _other_key(tmp_path)
    with running_node(tmp_path / "root", host_key_file=str(key)) as node:
        assert _host_key(node) == (tmp_path / "other.pub").read_text().split()[1]


def test_a_node_with_the_fault_shows_another_host_key_from_its_second_boot_on(tmp_path: Path) -> None:
    with running_node(tmp_path / "root", faults=["host-key-change"]) as node:
        first = _host_key(node)
        node.shut_down()
        node.boot()
        node.wait_for_ssh()
        assert _host_key(node) != first


def _host_key(node: SshNode) -> str:
    with paramiko.Transport((node.address, 2222)) as transport:
        transport.start_client(timeout=20)
        return transport.get_remote_server_key().get_base64()


def test_the_boot_is_waited_for_once_counted_from_the_creation(tmp_path: Path) -> None:
    with running_node(tmp_path / "root", created=time.time(), boot_seconds=120, time_scale=100) as node:
        booted = time.time()
        assert booted - node.facts["created"] >= 1.2
        node.shut_down()
        node.boot()
        node.wait_for_ssh()  # 1.2 s are over long since


def test_a_node_whose_ssh_is_dead_never_listens(tmp_path: Path) -> None:
    node = SshNode(tmp_path / "root", faults=["ssh-dead"])
    node.boot()
    try:
        eventually((node.root / "bin" / "docker").exists)
        assert node.process is not None and node.process.poll() is None
        with pytest.raises(OSError):
            node.connect()
    finally:
        node.shut_down()


def test_the_nth_command_loses_its_connection_and_the_next_connection_holds(tmp_path: Path) -> None:
    with running_node(tmp_path / "root", faults=["drop-connection:3"]) as node:
        with node.connect() as client:
            assert [ask(client, "exit 0")[0] for _ in range(2)] == [0, 0]
            assert ask(client, "sleep 60")[0] == -1
        with node.connect() as client:
            assert [ask(client, "exit 0")[0] for _ in range(4)] == [0] * 4


def test_sigterm_ends_the_node_and_hangs_up_its_commands(tmp_path: Path) -> None:
    with running_node(tmp_path / "root") as node, node.connect() as client:
        client.get_transport().open_session().exec_command("exec sleep 74")
        eventually(lambda: processes(node.root, "74"), "starting")
        assert node.process is not None
        node.process.terminate()
        assert node.process.wait(20) == 0
        eventually(lambda: not processes(node.root, "74"), "the hang-up")


def test_a_container_that_ran_comes_back_with_the_machine(tmp_path: Path) -> None:
    with running_node(tmp_path / "root") as node:
        with node.connect() as client:
            for name, policy in (("back", "unless-stopped"), ("gone", "no"), ("rests", "always")):
                assert ask(client, f"docker run -d --name {name} --restart {policy} ubuntu sleep 75")[0] == 0
            ask(client, "docker stop rests")
        node.shut_down()
        node.boot()
        node.wait_for_ssh()
        with node.connect() as client:
            assert ask(client, "docker ps --format '{{.Names}}'")[1] == b"back\n"
