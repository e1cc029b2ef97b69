"""What stays behind a container: starts its process, keeps its log, follows its restart policy. Sleeps otherwise."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time

from gpufleet.twin.docker.store import Container, kill_group, kill_strays, started_ticks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FIRST_BACKOFF, LONGEST_BACKOFF = 0.1, 60.0
"""Seconds before a restart: doubled each time, as docker does, until a run has lasted 10 s."""
STEADY_SECONDS = 10
LONGEST_LINE = 16384
"""Bytes; docker cuts longer log lines into parts."""


class Supervisor:
    """Runs one container to its end.

    Args:
        container: what to run.
        report: file descriptor that gets one line of JSON once the process runs (or could not be started), and
            another at its end.
        attached: copy output to our own stdout and stderr, until the reader of ``report`` is gone.
    """

    def __init__(self, container: Container, report: int, *, attached: bool) -> None:
        self._container = container
        self._report = report
        self._attached = attached
        self._log = (container.folder / "log.jsonl").open("a")
        self._state: dict[str, Any] = {
            "supervisor": os.getpid(),
            "ticks": started_ticks(os.getpid()),
            "restarts": 0,
            "exit_code": 0,
            "finished": 0.0,
        }

    def run(self) -> int:
        """Start, and start again as long as the policy says so; returns the last exit code."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        backoff = FIRST_BACKOFF
        while True:
            started = time.time()
            code = self._run_once(started)
            if time.time() - started > STEADY_SECONDS:
                backoff = FIRST_BACKOFF
            if not self._again(code):
                break
            self._save(status="restarting", pid=0, exit_code=code, finished=time.time())
            signal.sigtimedwait({signal.SIGUSR1}, backoff)
            if self._stopped():
                break
            backoff = min(2 * backoff, LONGEST_BACKOFF)
            self._state["restarts"] += 1
        self._save(status="exited", pid=0, exit_code=code, finished=time.time())
        self._tell(exit=code)
        if self._container.config["remove"]:
            self._container.remove()
        return code

    def _run_once(self, started: float) -> int:
        config = self._container.config
        streams = {name: os.pipe() for name in ("stdout", "stderr")}
        with contextlib.suppress(OSError):
            os.chdir(config["cwd"])
        stdin = 0 if config["interactive"] else os.open(os.devnull, os.O_RDONLY)
        actions = [(os.POSIX_SPAWN_DUP2, stdin, 0)]
        actions += [(os.POSIX_SPAWN_DUP2, streams[name][1], target) for name, target in (("stdout", 1), ("stderr", 2))]
        pid = os.posix_spawn(
            config["program"], config["argv"], config["env"], file_actions=actions, setsid=True, setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
        )  # fmt: skip
        if stdin:
            os.close(stdin)
        for _, write in streams.values():
            os.close(write)
        self._save(status="running", pid=pid, started=started)
        self._tell(pid=pid)
        self._pump(pid, {streams[name][0]: name for name in streams})
        status = os.waitpid(pid, 0)[1]
        kill_group(pid, signal.SIGKILL)
        kill_strays(self._container.id)
        code = os.waitstatus_to_exitcode(status)
        return 128 - code if code < 0 else code

    def _pump(self, pid: int, streams: dict[int, str]) -> None:
        """Log until the process ends."""
        pidfd = os.pidfd_open(pid)
        rest = dict.fromkeys(streams, b"")
        poll = select.poll()
        for fd in (pidfd, *streams):
            poll.register(fd, select.POLLIN)
        if self._report >= 0:
            poll.register(self._report, 0)
        running = True
        while running:
            events = poll.poll()
            for fd, _ in events:
                if fd in streams:
                    if not self._carry(fd, streams[fd], rest):
                        poll.unregister(fd)
                elif fd == self._report:
                    poll.unregister(fd)
                    self._detach()
            running = all(fd != pidfd for fd, _ in events)
        self._drain(streams, rest)
        os.close(pidfd)

    def _drain(self, streams: dict[int, str], rest: dict[int, bytes]) -> None:
        for fd, stream in streams.items():
            os.set_blocking(fd, False)
            while self._carry(fd, stream, rest):
                pass
            if rest[fd]:
                self._write(stream, rest[fd])
            os.close(fd)
        self._log.flush()

    def _carry(self, fd: int, stream: str, rest: dict[int, bytes]) -> bool:
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return False
        if self._attached and data:
            self._copy(stream, data)
        *lines, rest[fd] = (rest[fd] + data).split(b"\n")
        for line in lines:
            self._write(stream, line + b"\n")
        while len(rest[fd]) >= LONGEST_LINE:
            self._write(stream, rest[fd][:LONGEST_LINE])
            rest[fd] = rest[fd][LONGEST_LINE:]
        self._log.flush()
        return bool(data)

    def _copy(self, stream: str, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(1 if stream == "stdout" else 2, data) :]
        except OSError:
            self._detach()

    def _detach(self) -> None:
        """The docker command that started us is gone: the container runs on, its terminal does not."""
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.close(null)
        self._attached = False

    def _write(self, stream: str, line: bytes) -> None:
        now = time.time()
        text = line.decode("utf-8", "replace")
        self._log.write(json.dumps({"log": text, "stream": stream, "time": now}, ensure_ascii=False) + "\n")

    def _again(self, code: int) -> bool:
        policy, _, most = self._container.config["restart"].partition(":")
        if self._stopped() or policy in ("", "no"):
            return False
        if policy == "on-failure":
            return code != 0 and (not most or self._state["restarts"] < int(most))
        return True

    def _stopped(self) -> bool:
        return (self._container.folder / "stop").exists() or not self._container.folder.exists()

    def _save(self, **values: Any) -> None:
        self._state |= values
        fresh = self._container.folder / ".state"
        with contextlib.suppress(FileNotFoundError):  # removed by force
            fresh.write_text(json.dumps(self._state))
            fresh.replace(self._container.folder / "state.json")

    def _tell(self, **values: int) -> None:
        if self._report >= 0:
            with contextlib.suppress(OSError):
                os.write(self._report, json.dumps(values).encode() + b"\n")


def start(container: Container, *, attached: bool = False) -> tuple[int, Any]:
    """Start a container under a supervisor of its own; returns the process id and the open report.

    Raises:
        OSError: its program could not be started.
    """
    (container.folder / "stop").unlink(missing_ok=True)
    read, write = os.pipe()
    if not os.fork():
        os.close(read)
        os._exit(_become_supervisor(container, write, attached=attached))
    os.close(write)
    report = os.fdopen(read)
    first = json.loads(report.readline() or '{"errno": 2}')
    if "errno" in first:
        raise OSError(first["errno"], os.strerror(first["errno"]))
    return int(first["pid"]), report


def leave_terminal(*, keep: tuple[int, ...] = ()) -> None:
    """Belong to no session and hold no file of whoever started us: a lock that a script holds must end with it.

    Args:
        keep: descriptors to leave alone.
    """
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in {0, 1, 2}.difference(keep):
        os.dup2(null, fd)
    for fd in set(map(int, os.listdir("/proc/self/fd"))).difference(keep, (0, 1, 2)):  # noqa: PTH208
        with contextlib.suppress(OSError):
            os.close(fd)


def _become_supervisor(container: Container, report: int, *, attached: bool) -> int:
    kept = (report, *((0,) if container.config["interactive"] else ()), *((1, 2) if attached else ()))
    leave_terminal(keep=kept)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    try:
        return Supervisor(container, report, attached=attached).run()
    except OSError as problem:
        os.write(report, json.dumps({"errno": problem.errno or 2}).encode() + b"\n")
        return 1
