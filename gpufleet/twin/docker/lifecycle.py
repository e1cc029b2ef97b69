"""Starting, stopping and ending containers, and staying with one in the foreground."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal

from gpufleet.twin.docker import supervisor
from gpufleet.twin.docker.errors import DockerError, daemon, refused_run
from gpufleet.twin.docker.store import Container, Containers, kill_group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def start(container: Container, *, attached: bool = False) -> tuple[int, Any]:
    """Start a container; returns its process id and the open report of its supervisor.

    Raises:
        DockerError: its program is not in the image (exit status 127).
    """
    try:
        return supervisor.start(container, attached=attached)
    except OSError:
        if container.config["remove"]:
            container.remove()
        raise _not_executable(container) from None


def start_again(containers: Containers, container: Container) -> None:
    """``docker start``."""
    with containers.locked():
        if not container.running:
            start(container)


def restart(containers: Containers, container: Container, timeout: str) -> None:
    """``docker restart``."""
    stop(container, timeout)
    start_again(containers, container)


def stop(container: Container, timeout: str, number: int = signal.SIGTERM) -> None:
    """Signal the first process, and kill what is there when ``timeout`` seconds (or the container's own) are over."""
    (container.folder / "stop").touch()
    state = container.state()
    if not container.running:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(state["supervisor"], signal.SIGUSR1)  # ends a wait before the next start
        if state["pid"]:
            os.kill(state["pid"], number)
    if not wait_for_end(container, float(timeout or container.config["stop_timeout"])):
        kill_group(container.state()["pid"], signal.SIGKILL)
        wait_for_end(container)


def kill(container: Container, name: str) -> None:
    """``docker kill --signal NAME``."""
    if not container.running:
        raise daemon(f"cannot kill container: {container.name}: container {container.id} is not running")
    number = int(name) if name.isdecimal() else int(signal.Signals[f"SIG{name.removeprefix('SIG')}"])
    if number == signal.SIGKILL:
        stop(container, "5", signal.SIGKILL)
    else:
        os.kill(container.state()["pid"], number)


def remove(container: Container, *, force: bool) -> None:
    """``docker rm``; a running container only by force."""
    if container.running:
        if not force:
            problem = "container is running: stop the container before removing or force remove"
            raise daemon(f'cannot remove container "/{container.name}": {problem}')
        stop(container, "5", signal.SIGKILL)
    container.remove()


def attend(pid: int, report: Any) -> int:
    """Stay with a container in the foreground: hand signals on, and end with its exit status."""

    def hand_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, hand_on)
    for line in report:
        values = json.loads(line)
        pid = values.get("pid", pid)
        if "exit" in values:
            return int(values["exit"])
    return 137


def wait_for_end(container: Container, seconds: float | None = None) -> bool:
    """Wait until a container's supervisor is gone; false when the time is over first."""
    if not container.running:
        return True
    try:
        fd = os.pidfd_open(container.state()["supervisor"])
    except ProcessLookupError:
        return True
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    ended = bool(poll.poll(None if seconds is None else seconds * 1000))
    os.close(fd)
    return ended


def _not_executable(container: Container) -> DockerError:
    """What docker says when the container's program is not in the image."""
    word = container.config["command"][0]
    detail = (
        f'exec: "{word}": executable file not found in $PATH'
        if "/" not in word
        else f'exec: "{word}": stat {word}: no such file or directory'
    )
    return refused_run(
        daemon(
            "failed to create task for container: failed to create shim task: OCI runtime create failed: runc create "
            f"failed: unable to start container process: error during container init: {detail}: unknown"
        ).message,
        127,
    )
