"""Containers of the twin's docker on disk: one directory each, so that they outlive every process that made them.

``config.json`` is what was asked for, ``state.json`` what the container's supervisor reports, ``log.jsonl`` its output,
``stop`` says that a user stopped it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
from pathlib import Path

from gpufleet.twin.docker.errors import daemon

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from gpufleet.twin.nodefile import Node


class Container:
    """One container's directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())

    @property
    def id(self) -> str:
        """64 hex digits."""
        return self.folder.name

    @property
    def name(self) -> str:
        """What the user calls it."""
        return str(self.config["name"])

    @property
    def running(self) -> bool:
        """Whether its process is there, or is about to be started again."""
        return self.state()["status"] in ("running", "restarting")

    @property
    def interrupted(self) -> bool:
        """Whether its supervisor ended before it could say so, as when the machine goes down."""
        state = self._written()
        return state["status"] in ("running", "restarting") and started_ticks(state["supervisor"]) != state["ticks"]

    def state(self) -> dict[str, Any]:
        """Status, process ids, exit code and times; a supervisor that was killed reads as exited with 137."""
        state = self._written()
        if not self.interrupted:
            return state
        kill_group(state["pid"], signal.SIGKILL)
        return state | {"status": "exited", "exit_code": 137, "pid": 0}

    def _written(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        except FileNotFoundError:
            return {"status": "created", "pid": 0, "supervisor": 0, "ticks": 0, "exit_code": 0, "restarts": 0}
        return state

    def remove(self) -> None:
        """Delete the directory."""
        import shutil  # its import is longer than most commands run

        shutil.rmtree(self.folder, ignore_errors=True)


class Containers:
    """All containers of a node."""

    def __init__(self, node: Node) -> None:
        self.folder = node.root / "docker" / "containers"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other docker commands from creating or starting at the same time."""
        with (self.folder.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def all(self) -> list[Container]:
        """Every container, newest first."""
        found = []
        for path in self.folder.glob("*/config.json"):
            with contextlib.suppress(FileNotFoundError):
                found.append(Container(path.parent))
        return sorted(found, key=lambda container: -container.config["created"])

    def find(self, name: str) -> Container | None:
        """The container that a name or the beginning of an id means."""
        known = self.all()
        exact = [c for c in known if name.removeprefix("/") == c.name or name == c.id]
        return next(iter(exact or [c for c in known if name and c.id.startswith(name)]), None)

    def get(self, name: str) -> Container:
        """Like `find`.

        Raises:
            DockerError: no such container.
        """
        container = self.find(name)
        if container is None:
            raise daemon(f"No such container: {name}")
        return container

    def create(self, identifier: str, config: dict[str, Any]) -> Container:
        """Make a container's directory, whole or not at all.

        Raises:
            DockerError: the name is taken.
        """
        taken = self.find(config["name"])
        if taken is not None:
            raise daemon(
                f'Conflict. The container name "/{config["name"]}" is already in use by container "{taken.id}". '
                "You have to remove (or rename) that container to be able to reuse that name."
            )
        folder = self.folder / identifier
        folder.mkdir()
        fresh = folder / ".config"
        fresh.write_text(json.dumps(config))
        fresh.replace(folder / "config.json")
        return Container(folder)


def started_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 when it is gone. Tells a reused process id apart."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


def kill_group(pid: int, number: int) -> None:
    """Signal a process group; it may be gone."""
    if pid > 1:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)


def kill_strays(container_id: str) -> None:
    """End what left the container's process group: nothing of a container outlives its first process."""
    mark = f"TWIN_CONTAINER={container_id}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            inside = mark in path.read_bytes().split(b"\0")
        except OSError:  # not ours, or gone
            continue
        if inside:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.parent.name), signal.SIGKILL)
