from __future__ import annotations

import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.errors import Interrupted, NodeFailed
from gpufleet.remote.errors import ConnectionLost, HostKeyChanged, LoginRefused
from gpufleet.remote.ssh import SshMachine, connect, wait_for_ssh
from tests.remote.sshd import Sshd, start_sshd, write_key


def test_a_command_gets_its_stdin_and_gives_both_streams_and_the_exit_code(node: SshMachine) -> None:
    done = node.run("cat; echo oops >&2; exit 3", stdin=b"in")
    assert (done.exit_code, done.stdout, done.stderr) == (3, "in", "oops\n")


def test_binary_stdin_larger_than_any_window_passes_untouched(node: SshMachine) -> None:
    data = os.urandom(6_000_000)
    assert b"".join(node.stream("cat", stdin=data)) == data


def test_a_lot_on_stderr_does_not_block_stdout(node: SshMachine) -> None:
    done = node.run("head -c 5000000 /dev/zero >&2; echo end")
    assert done.stdout == "end\n"
    assert len(done.stderr) == 5_000_000


def test_a_stream_yields_before_the_command_ends(node: SshMachine) -> None:
    stream = node.stream("echo one; cat >/dev/null; read -r x </dev/null; sleep 600")
    assert next(stream) == b"one\n"
    stream.close()


def test_a_stream_ends_when_its_reader_has_had_enough(node: SshMachine) -> None:
    assert list(node.stream("sleep 600", until=lambda: True)) == []
    assert node.run("echo still here").stdout == "still here\n"


def test_a_command_that_is_too_slow_is_ended_on_the_node_as_well(node: SshMachine, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with pytest.raises(ConnectionLost, match="did not end within"):
        node.run(f"echo $$ >{pid_file}; sleep 600", timeout=3)
    _until(lambda: not Path(f"/proc/{pid_file.read_text().strip()}").exists())


def test_a_command_ended_by_a_signal_has_failed(node: SshMachine) -> None:
    assert node.run("kill -9 $$").exit_code != 0


def test_many_threads_share_one_connection(node: SshMachine, server: Sshd) -> None:
    with ThreadPoolExecutor(20) as pool:
        results = list(pool.map(lambda i: node.run(f"sleep 0.1; echo {i}").stdout, range(20)))
    assert results == [f"{i}\n" for i in range(20)]
    assert (server.root / "sshd.log").read_text().count("Accepted publickey") <= 1


def test_a_dropped_connection_is_told_apart_from_a_command_that_ended(node: SshMachine, server: Sshd) -> None:
    stream = node.stream("echo up; sleep 600")
    assert next(stream) == b"up\n"
    server.drop_connections()
    with pytest.raises(ConnectionLost):
        next(stream)
    with pytest.raises(ConnectionLost):
        node.run("true")
    assert not node.alive


def test_the_first_host_key_is_reported_and_can_be_pinned(server: Sshd, key_file: Path) -> None:
    first = connect(server.endpoint, name="n", private_key_file=key_file)
    assert first.host_key == server.host_key
    first.close()
    pinned = connect(
        server.endpoint, name="n", private_key_file=key_file, pinned_host_key=first.host_key + " a comment"
    )
    assert pinned.run("echo ok").stdout == "ok\n"
    pinned.close()


def test_another_host_key_is_refused_before_our_key_is_offered(server: Sshd, key_file: Path, tmp_path: Path) -> None:
    other = write_key(tmp_path / "other")
    for endpoint, pin in ((server.endpoint, other), (replace(server.endpoint, host_key=other), None)):
        with pytest.raises(HostKeyChanged, match="another host key") as caught:
            wait_for_ssh(
                endpoint,
                name="n",
                private_key_file=key_file,
                pinned_host_key=pin,
                deadline_seconds=60,
                stop=threading.Event(),
            )
        assert caught.value.hint
    assert "publickey" not in (server.root / "sshd.log").read_text()


def test_a_host_without_a_key_of_the_pinned_type_is_refused(server: Sshd, key_file: Path) -> None:
    with pytest.raises(HostKeyChanged):
        connect(server.endpoint, name="n", private_key_file=key_file, pinned_host_key="ecdsa-sha2-nistp256 AAAA")


def test_a_key_that_the_host_does_not_know_is_refused(server: Sshd, tmp_path: Path) -> None:
    write_key(tmp_path / "stranger")
    with pytest.raises(LoginRefused, match="does not take our key"):
        connect(server.endpoint, name="n", private_key_file=tmp_path / "stranger")


def test_a_private_key_that_cannot_be_read_is_named(server: Sshd, tmp_path: Path) -> None:
    (tmp_path / "junk").write_text("junk")
    for path in (tmp_path / "junk", tmp_path / "missing"):
        with pytest.raises(NodeFailed) as caught:
            connect(server.endpoint, name="n", private_key_file=path)
        assert caught.value.where == str(path)


def test_nothing_listening_and_something_that_is_not_ssh_are_lost_connections(server: Sshd, key_file: Path) -> None:
    with socket.create_server((server.host, 0)) as mute:
        silent = replace(server.endpoint, port=mute.getsockname()[1])
        with pytest.raises(ConnectionLost):
            connect(silent, name="n", private_key_file=key_file, timeout=0.3)
    with pytest.raises(ConnectionLost, match="connection refused"):
        connect(silent, name="n", private_key_file=key_file)


def test_waiting_ends_when_the_server_comes_up(tmp_path: Path, key_file: Path, server: Sshd) -> None:
    server.stop()
    waiting = ThreadPoolExecutor(1).submit(
        wait_for_ssh,
        server.endpoint,
        name="n",
        private_key_file=key_file,
        deadline_seconds=60,
        stop=threading.Event(),
    )
    again = start_sshd(tmp_path / "again", key_file.with_suffix(".pub").read_text(), host=server.host, port=server.port)
    machine = waiting.result(60)
    machine.close()
    again.stop()


def test_waiting_outlasts_a_login_that_is_refused_early_in_the_boot(server: Sshd, key_file: Path) -> None:
    authorized = server.root / "authorized_keys"
    ours = authorized.read_text()
    authorized.write_text("")
    waiting = ThreadPoolExecutor(1).submit(
        wait_for_ssh,
        server.endpoint,
        name="n",
        private_key_file=key_file,
        deadline_seconds=60,
        stop=threading.Event(),
    )
    _until(lambda: "Connection closed by" in (server.root / "sshd.log").read_text())
    authorized.write_text(ours)
    waiting.result(60).close()


def test_waiting_gives_up_at_its_deadline_and_says_why(server: Sshd, key_file: Path) -> None:
    server.stop()
    with pytest.raises(ConnectionLost, match=r"connection refused.*tried for"):
        wait_for_ssh(server.endpoint, name="n", private_key_file=key_file, deadline_seconds=0.2, stop=threading.Event())


def test_waiting_ends_at_once_when_stopped(server: Sshd, key_file: Path) -> None:
    server.stop()
    stop = threading.Event()
    waiting = ThreadPoolExecutor(1).submit(
        wait_for_ssh, server.endpoint, name="n", private_key_file=key_file, deadline_seconds=600, stop=stop
    )
    stop.set()
    with pytest.raises(Interrupted):
        waiting.result(30)


def _until(condition: object) -> None:
    deadline = time.monotonic() + 30
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)
