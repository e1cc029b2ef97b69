from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpufleet.domain.jobs import JobEvent, JobEventKind
from gpufleet.errors import Interrupted, UsageError
from gpufleet.remote.errors import ConnectionLost, JobFailed
from gpufleet.remote.jobs import job_names, run_job, tail_job_log
from gpufleet.remote.local import LocalMachine
from gpufleet.remote.ssh import SshMachine, connect
from tests.remote.jobs import kinds, make_job, run, step, until
from tests.remote.sshd import Sshd

GATE = "while [ ! -e gate ]; do sleep 0.05; done"
"""A step that runs until the test lets it go on."""


class Counting:
    """A machine that counts what is executed on it."""

    def __init__(self, machine: SshMachine) -> None:
        self._machine = machine
        self.executed = 0
        self.name, self.workdir, self.close = machine.name, machine.workdir, machine.close

    def run(self, *args: object, **kwargs: object) -> object:
        self.executed += 1
        return self._machine.run(*args, **kwargs)  # type: ignore[arg-type]

    def stream(self, *args: object, **kwargs: object) -> Iterator[bytes]:
        self.executed += 1
        return self._machine.stream(*args, **kwargs)  # type: ignore[arg-type]


@pytest.fixture
def work(server: Sshd) -> Path:
    return server.root / "work"


@pytest.fixture
def folder(server: Sshd) -> Path:
    return server.root


def test_a_job_is_one_exec_and_so_is_its_second_run_which_skips_every_step(
    node: SshMachine, folder: Path, work: Path
) -> None:
    job = make_job(folder, step("echo ran >>trace", "a"), step("echo ran >>trace", "b"))
    machine = Counting(node)
    first = run(machine, job)  # type: ignore[arg-type]
    assert kinds(first) == ["step-started", "step-done"] * 2 + ["job-done"]
    second = run(machine, job)  # type: ignore[arg-type]
    assert kinds(second) == ["step-skipped", "step-skipped", "job-done"]
    assert machine.executed == 2
    assert (work / "trace").read_text() == "ran\nran\n"


def test_a_dropped_connection_loses_no_event_and_repeats_none(
    node: SshMachine, server: Sshd, key_file: Path, folder: Path, work: Path
) -> None:
    job = make_job(folder, step(f"note one; note two; {GATE}; note three; printf x >>trace", "a"), step("true", "b"))
    seen: list[JobEvent] = []

    def on_event(event: JobEvent) -> None:
        seen.append(event)
        if event.message == "two":
            server.drop_connections()

    def reconnect() -> SshMachine:
        machine = connect(server.endpoint, name="decode/0", private_key_file=key_file)
        (work / "gate").touch()
        return machine

    events = run(node, job, on_event=on_event, reconnect=reconnect)
    assert events == []
    assert kinds(seen) == ["step-started", *["progress"] * 3, "step-done", "step-started", "step-done", "job-done"]
    assert [e.message for e in seen if e.message] == ["one", "two", "three"]
    assert (work / "trace").read_text() == "x"


def test_a_reconnect_that_fails_is_tried_again(node: SshMachine, server: Sshd, key_file: Path, folder: Path) -> None:
    job = make_job(folder, step("note up; sleep 0.3"))
    failures = iter([True, False])

    def reconnect() -> SshMachine:
        if next(failures):
            raise ConnectionLost("not yet")
        return connect(server.endpoint, name="decode/0", private_key_file=key_file)

    def on_event(event: JobEvent) -> None:
        if event.message == "up":
            server.drop_connections()

    assert (
        run_job(node, job, on_event=on_event, reconnect=reconnect, stop=threading.Event(), deadline_seconds=60)[-1].kind
        is JobEventKind.JOB_DONE
    )


def test_without_a_way_to_reconnect_a_dropped_connection_is_an_error(
    node: SshMachine, server: Sshd, folder: Path, work: Path
) -> None:
    job = make_job(folder, step(f"note up; {GATE}"))
    with pytest.raises(ConnectionLost):
        run(node, job, on_event=lambda event: event.message == "up" and server.drop_connections())
    (work / "gate").touch()


def test_a_killed_client_costs_nothing(node: SshMachine, server: Sshd, key_file: Path, folder: Path) -> None:
    work = server.root / "work"
    job = make_job(folder, step("echo a >>trace", "a"), step(f"note waiting; {GATE}; echo b >>trace", "b"))
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(folder), server.host, str(server.port), str(key_file)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert client.stdout is not None
    assert client.stdout.readline() == b"waiting\n"
    os.kill(client.pid, signal.SIGKILL)
    client.wait()
    (work / "gate").touch()
    events = run(node, job)
    assert kinds(events)[-1] == "job-done"
    assert (work / "trace").read_text() == "a\nb\n"


CLIENT = textwrap.dedent("""
    import sys, threading
    from pathlib import Path
    from gpufleet.domain.market import SshEndpoint
    from gpufleet.remote.jobs import run_job
    from gpufleet.remote.ssh import connect
    from tests.remote.jobs import make_job, step, run
    from tests.remote.test_jobs import GATE
    folder, host, port, key = sys.argv[1:]
    job = make_job(Path(folder), step("echo a >>trace", "a"), step(f"note waiting; {GATE}; echo b >>trace", "b"))
    endpoint = SshEndpoint(host, int(port), workdir=folder + "/work")
    machine = connect(endpoint, name="decode/0", private_key_file=Path(key))
    run(machine, job, on_event=lambda e: e.message and print(e.message, flush=True))
""")


def test_two_clients_at_once_run_a_job_once_and_both_see_all_of_it(node: SshMachine, folder: Path, work: Path) -> None:
    job = make_job(folder, step(f"echo ran >>trace; {GATE}"))
    with ThreadPoolExecutor(6) as pool:
        runs = [pool.submit(run, node, job) for _ in range(6)]
        until((work / "trace").exists)
        (work / "gate").touch()
        results = [future.result(60) for future in runs]
    assert all(kinds(events)[-1] == "job-done" for events in results)
    assert (work / "trace").read_text() == "ran\n"


def test_a_run_with_other_inputs_stops_the_one_under_way(node: SshMachine, folder: Path, work: Path) -> None:
    def job(value: str) -> object:
        run_text = 'echo "$GF_A" >>trace; [ "$GF_A" = new ] || sleep 600'
        return make_job(folder, step(run_text), inputs={"GF_A": "text"}, values={"GF_A": value})

    with ThreadPoolExecutor(1) as pool:
        old = pool.submit(run, node, job("old"))  # type: ignore[arg-type]
        until((work / "trace").exists)
        assert kinds(run(node, job("new")))[-1] == "job-done"  # type: ignore[arg-type]
        with pytest.raises(JobFailed, match="stopped"):
            old.result(60)
    assert (work / "trace").read_text() == "old\nnew\n"
    assert "sleep 600" not in _processes_below(work)


def test_a_runner_that_was_killed_is_noticed_and_its_step_ended_before_the_next_run(
    node: SshMachine, folder: Path, work: Path
) -> None:
    job = make_job(folder, step("echo $$ >>pids; if [ -e gate ]; then exit 0; fi; sleep 600"))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(run, node, job)
        until((work / "pids").exists)
        runner = int((work / "jobs/job/pid").read_text().split()[0])
        os.kill(runner, signal.SIGKILL)
        with pytest.raises(JobFailed, match="ended without saying how"):
            first.result(60)
    orphan = int((work / "pids").read_text().split()[0])
    assert Path(f"/proc/{orphan}").exists()
    (work / "gate").touch()
    run(node, job)
    until(lambda: not _is_running(orphan))


def test_what_a_step_detaches_does_not_keep_the_job_alive(node: SshMachine, folder: Path, work: Path) -> None:
    job = make_job(folder, step("setsid sleep 601 >/dev/null 2>&1 & echo $! >daemon"))
    try:
        assert kinds(run(node, job)) == ["step-started", "step-done", "job-done"]
        assert kinds(run(node, job)) == ["step-skipped", "job-done"]
    finally:
        os.kill(int((work / "daemon").read_text()), signal.SIGTERM)


def test_a_failed_step_names_itself_its_exit_code_its_output_and_its_log(node: SshMachine, folder: Path) -> None:
    job = make_job(folder, step("echo first; echo 'no \"space\" left' >&2; exit 7"), step("true", "two"))
    seen: list[JobEvent] = []
    with pytest.raises(JobFailed) as caught:
        run(node, job, on_event=seen.append)
    assert "step 'one' of job 'job' failed (exit 7)" in caught.value.message
    assert 'first\nno "space" left' in caught.value.message
    assert caught.value.where is not None
    assert caught.value.where.endswith("/jobs/job/log")
    assert kinds(seen) == ["step-started", "step-failed", "job-failed"]


def test_output_of_any_kind_survives_the_event_log(node: SshMachine, folder: Path) -> None:
    noise = r"printf 'a\\b\t\"\001\377\303'; head -c 1000000 /dev/zero | tr '\0' x; printf '\nlast'; exit 1"
    with pytest.raises(JobFailed, match="last"):
        run(node, make_job(folder, step(noise)))


def test_an_event_line_that_is_torn_is_passed_over(node: SshMachine, folder: Path) -> None:
    job = make_job(folder, step('printf \'{"kind":"step-\' >>"$GF_JOB_DIR/events"; note more; note end'))
    messages = [event.message for event in run(node, job)]
    assert "more" not in messages
    assert "end" in messages


def test_a_stop_leaves_the_job_running_and_the_next_call_joins_it(node: SshMachine, folder: Path, work: Path) -> None:
    job = make_job(folder, step(f"echo ran >>trace; note up; {GATE}"))
    stop = threading.Event()
    with pytest.raises(Interrupted):
        run(node, job, stop=stop, on_event=lambda event: stop.set())
    (work / "gate").touch()
    assert kinds(run(node, job))[-1] == "job-done"
    assert (work / "trace").read_text() == "ran\n"


def test_a_deadline_is_an_error_and_the_job_goes_on(node: SshMachine, folder: Path, work: Path) -> None:
    job = make_job(folder, step(f"echo ran >>trace; {GATE}"))
    with pytest.raises(JobFailed, match="not done after"):
        run(node, job, deadline_seconds=0.4)
    (work / "gate").touch()
    assert kinds(run(node, job))[-1] == "job-done"
    assert (work / "trace").read_text() == "ran\n"


def test_secrets_stay_out_of_the_process_list_the_script_the_log_and_the_events(
    node: SshMachine, folder: Path, work: Path
) -> None:
    secret = "hf_S3cretS3cret"
    job = make_job(
        folder,
        step('ps axww >ps.txt; echo "token is $HF_TOKEN" | sed "s/is/was/"; false'),
        inputs={"HF_TOKEN": {"description": "token", "secret": True}},
        secrets={"HF_TOKEN": secret},
    )
    assert secret not in job.script
    with pytest.raises(JobFailed) as caught:
        run(node, job)
    assert "token was ***" in caught.value.message
    assert "gpufleet-job" in (work / "ps.txt").read_text()
    for file in ("ps.txt", "jobs/job/events", "jobs/job/script", "jobs/job/done"):
        path = work / file
        assert path.is_dir() or secret not in path.read_text()
    assert not (work / "jobs/job/env").exists()
    assert all(path.stat().st_mode & 0o077 == 0 for path in (work / "jobs").rglob("*"))


def test_a_machine_whose_workdir_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    machine = LocalMachine(tmp_path / "file" / "work")
    with pytest.raises(JobFailed, match="cannot make the directory"):
        run(machine, make_job(tmp_path, step("true")))


def test_an_upload_that_was_cut_short_starts_nothing(tmp_path: Path) -> None:
    job = make_job(tmp_path, step("touch ran"))

    class Cut(LocalMachine):
        def stream(
            self, command: str, *, stdin: bytes = b"", until: Callable[[], bool] | None = None
        ) -> Iterator[bytes]:
            return super().stream(command, stdin=stdin[:-1], until=until)

    with pytest.raises(JobFailed, match="cut short"):
        run(Cut(tmp_path / "work"), job)
    assert not (tmp_path / "work/ran").exists()


def test_the_log_of_a_job_can_be_read_and_followed(node: SshMachine, folder: Path, work: Path) -> None:
    job = make_job(folder, step(f"echo hello; {GATE}; echo goodbye"), name="talk")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, node, job)
        until(lambda: b"hello" in b"".join(tail_job_log(node, "talk")))
        follow = tail_job_log(node, "talk", follow=True)
        text = next(follow)
        (work / "gate").touch()
        while b"goodbye" not in text:
            text += next(follow)
        running.result(60)
        follow.close()  # type: ignore[attr-defined]
    assert job_names(node) == ("talk",)
    assert b"has written no log" in b"".join(tail_job_log(node, "other"))
    with pytest.raises(UsageError):
        list(tail_job_log(node, "../x"))


def test_a_job_runs_on_this_machine_as_it_does_on_a_node(tmp_path: Path) -> None:
    machine = LocalMachine(tmp_path / "work")
    assert kinds(run(machine, make_job(tmp_path, step("true")))) == ["step-started", "step-done", "job-done"]


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def _processes_below(work: Path) -> str:
    lines = []
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            if proc.joinpath("cwd").readlink() == work:
                lines.append(proc.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return "\n".join(lines)
