"""What docker does when the machine comes up."""

from __future__ import annotations

import contextlib

from gpufleet.twin.docker import supervisor
from gpufleet.twin.docker.store import Containers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpufleet.twin.nodefile import Node


def start_at_boot(node: Node) -> None:
    """Start the containers that ran when the machine went down and whose restart policy asks for it."""
    for container in Containers(node).all():
        asked = container.config["restart"] in ("always", "unless-stopped")
        if asked and container.interrupted and not (container.folder / "stop").exists():
            with contextlib.suppress(OSError):
                supervisor.start(container)
