"""What a stand-in knows about the node it runs on: node.json, the mounts and packages of its container."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from typing import NamedTuple, NoReturn

from gpufleet.twin import nodefile


class NodeFacts(NamedTuple):
    """The simulated machine. Seconds are simulated seconds unless said otherwise."""

    address: str
    time_scale: float
    gpu_model: str
    gpu_count: int
    vram_gb: float
    """Per GPU."""
    driver: str
    pace: dict[str, float]
    """Tokens per real second (``*_tps``) and ``load_seconds``."""

    @property
    def load_wait(self) -> float:
        """Real seconds that loading the weights takes."""
        return self.pace["load_seconds"] / self.time_scale


def node_facts() -> NodeFacts:
    """The node of ``$TWIN_ROOT``; without it, a plain 8xB200 machine on 127.0.0.1 that loads at once."""
    node = nodefile.load() if os.environ.get("TWIN_ROOT") else nodefile.Node(Path(), {"pace": {"load_seconds": 0}})
    return NodeFacts(
        address=str(node.facts["address"]),
        time_scale=node.time_scale,
        gpu_model=str(node.facts["gpu_model"]),
        gpu_count=node.gpus_visible,
        vram_gb=float(node.facts["vram_gb"]),
        driver=node.driver,
        pace=node.pace,
    )


def installed(package: str) -> str | None:
    """Version of ``package`` in this container; ``""`` when the container's packages are not known, None if absent."""
    listed = os.environ.get("TWIN_PACKAGES")
    if listed is None:
        return ""
    versions = dict(entry.split("==", 1) for entry in listed.split(",") if "==" in entry)
    return versions.get(package)


_MODULES = {"vllm-router": "vllm_router", "mooncake-transfer-engine": "mooncake"}


def require(*packages: str) -> None:
    """Exit as a failed import does when one of ``packages`` is absent."""
    for package in packages:
        if installed(package) is None:
            die(f"ModuleNotFoundError: No module named '{_MODULES.get(package, package)}'")


def transport_package(transport: str) -> str:
    """What a TileRT transport is imported from."""
    return "nixl" if transport == "nixl" else "mooncake-transfer-engine"


def major(version: str) -> int:
    """``5`` of ``5.4.0``."""
    return int(version.split(".", 1)[0])


def visible(path: str) -> bool:
    """Whether ``path`` exists and, inside a container, lies under one of its mounts."""
    real = os.path.normpath(path)
    mounts = os.environ.get("TWIN_MOUNTS")
    if mounts is not None and not any(_under(real, mount) for mount in mounts.split(":") if mount):
        return False
    return os.path.exists(real)  # noqa: PTH110


def _under(path: str, mount: str) -> bool:
    mount = os.path.normpath(mount)
    return path == mount or path.startswith(mount.rstrip("/") + "/")


def no_gpu_in_container() -> bool:
    """A container that was started without ``--gpus``."""
    return os.environ.get("TWIN_GPUS") in ("", "0", "none")


def bind_address(host: str, facts: NodeFacts) -> str:
    """ "Every interface" of a twin is its one address."""
    return facts.address if host in ("", "0.0.0.0", "::") else host


def reachable_address(host: str, facts: NodeFacts) -> str:
    """``host`` as a peer process of this node sees it: its own loopback is its own address."""
    return facts.address if host in ("localhost", "127.0.0.1") else host


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket.

    Raises:
        OSError: the port is taken, or the address is not this machine's.
    """
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind((host, port))
    except OSError:
        server.close()
        raise
    server.listen(128)
    return server


def log(line: str) -> None:
    """One log line, at once."""
    print(line, flush=True)


def stamp() -> str:
    """``2026-11-30 21:26:18,123``, as Python's logging writes it."""
    now = time.time()
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(now)) + f",{int(now * 1000) % 1000:03d}"


def die(message: str, code: int = 1) -> NoReturn:
    """End the program as an uncaught error does: the message on stderr, exit status ``code``."""
    print(message, file=sys.stderr, flush=True)
    raise SystemExit(code)
