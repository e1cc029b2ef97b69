"""One SSH session channel of a twin node: a process group, its pipes, and flow control in both directions."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import paramiko

CHUNK = 65536
WATCH_SECONDS = 0.5
"""How often a session whose client sends nothing more looks whether the client is still there."""


class Session:
    """Runs one command for one channel."""

    def __init__(self, channel: paramiko.Channel, process: subprocess.Popen[bytes], fds: tuple[int, int, int]) -> None:
        """
        Args:
            channel: where the client is.
            process: leader of its own session.
            fds: our ends of stdin, stdout and stderr; stderr is -1 with a terminal.
        """
        self._channel = channel
        self._process = process
        self._stdin, self._stdout, self._stderr = fds
        self._pending = b""
        self._outputs = {fd for fd in fds[1:] if fd >= 0}
        self._poll = select.poll()

    def run(self) -> None:
        """Carry bytes until the output has ended and the process too, or the client is gone."""
        pidfd = os.pidfd_open(self._process.pid)
        try:
            self._pump(pidfd)
        except OSError:
            self.hang_up()  # the channel refused bytes: nobody is there any more
        finally:
            os.close(pidfd)
            self._close_all()

    def hang_up(self) -> None:
        """What a closed terminal does: processes that moved to a session of their own live on."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGHUP)

    def resize(self, width: int, height: int) -> None:
        """Tell the terminal its size."""
        fcntl.ioctl(self._stdin, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def _pump(self, pidfd: int) -> None:
        os.set_blocking(self._stdin, False)
        client = self._channel.fileno()
        for fd in (client, pidfd, *self._outputs):
            self._poll.register(fd, select.POLLIN)
        running = client_speaks = True
        while running or self._outputs:
            for fd, _ in self._poll.poll(None if client_speaks and not self._pending else WATCH_SECONDS * 1000):
                if fd == pidfd:
                    running = False
                    self._poll.unregister(pidfd)
                    self._report_exit()
                elif fd == client:
                    client_speaks = self._take_input(client)
                else:
                    self._move(fd, client)
            if self._channel.closed:
                return self.hang_up()
        return None

    def _move(self, fd: int, client: int) -> None:
        if fd == self._stdin and self._pending:
            self._feed(client)
        if fd in self._outputs:
            self._carry_output(fd)

    def _take_input(self, client: int) -> bool:
        data = self._channel.recv(CHUNK)
        self._poll.unregister(client)
        if not data:
            self._end_input()
            return False
        self._pending = data
        if self._stdin >= 0 and self._stdin not in self._outputs:
            self._poll.register(self._stdin, select.POLLOUT)
        elif self._stdin >= 0:
            self._poll.modify(self._stdin, select.POLLIN | select.POLLOUT)
        self._feed(client)
        return True

    def _feed(self, client: int) -> None:
        """Hand pending input to the process; once it is gone, listen to the client again."""
        try:
            self._pending = self._pending[os.write(self._stdin, self._pending) :] if self._stdin >= 0 else b""
        except BlockingIOError:
            return
        except OSError:  # the process reads no more: swallow what the client still sends
            self._pending = b""
            self._end_input()
        if self._pending:
            return
        if self._stdin in self._outputs:
            self._poll.modify(self._stdin, select.POLLIN)
        elif self._stdin >= 0:
            self._poll.unregister(self._stdin)
        self._poll.register(client, select.POLLIN)

    def _end_input(self) -> None:
        if self._stdin >= 0 and self._stdin not in self._outputs:
            with contextlib.suppress(KeyError):
                self._poll.unregister(self._stdin)
            os.close(self._stdin)
            self._stdin = -1

    def _carry_output(self, fd: int) -> None:
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:  # a terminal whose last process is gone
            data = b""
        if not data:
            self._outputs.discard(fd)
            self._poll.unregister(fd)
        elif fd == self._stderr:
            self._channel.sendall_stderr(data)
        else:
            self._channel.sendall(data)

    def _report_exit(self) -> None:
        """Tell the exit status. A process killed by a signal has none, as with OpenSSH."""
        status = self._process.wait()
        if status >= 0:
            self._channel.send_exit_status(status)

    def _close_all(self) -> None:
        for fd in {self._stdin, self._stdout, self._stderr} - {-1}:
            os.close(fd)
        self._channel.close()
        self._process.poll()


def start_command(channel: paramiko.Channel, command: bytes, env: dict[str, str], home: Path) -> Session:
    """Start ``command`` with three pipes."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", os.fsdecode(command)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        cwd=home,
        start_new_session=True,
        bufsize=0,
    )
    pipes = [os.dup(pipe.fileno()) for pipe in (process.stdin, process.stdout, process.stderr) if pipe]
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            pipe.close()
    return Session(channel, process, (pipes[0], pipes[1], pipes[2]))


def start_terminal(channel: paramiko.Channel, argv: list[str], env: dict[str, str], home: Path) -> Session:
    """Start ``argv`` on a terminal of its own."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        ["/usr/bin/setsid", "--ctty", *argv], stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=home
    )
    os.close(theirs)
    return Session(channel, process, (ours, ours, -1))
