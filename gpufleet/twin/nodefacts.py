"""What a stand-in knows about the node it runs on: node.json, the mounts and packages of its container."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import Any, NamedTuple, NoReturn

DEFAULT_PACE = {"prefill_tps": 8000, "decode_tps": 200, "native_tps": 40, "load_seconds": 0}


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
    faults: tuple[str, ...]

    @property
    def load_wait(self) -> float:
        """Real seconds that loading the weights takes."""
        return self.pace["load_seconds"] / self.time_scale


def node_facts() -> NodeFacts:
    """Read ``$TWIN_ROOT/node.json``; without it, a plain 8xB200 machine on 127.0.0.1."""
    raw: dict[str, Any] = {}
    root = os.environ.get("TWIN_ROOT")
    if root:
        with open(f"{root}/node.json", encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs start-up time
            raw = json.load(file)
    return NodeFacts(
        address=raw.get("address", "127.0.0.1"),
        time_scale=float(raw.get("time_scale", 1)),
        gpu_model=raw.get("gpu_model", "B200"),
        gpu_count=int(raw.get("gpu_count_visible", raw.get("gpu_count", 8))),
        vram_gb=float(raw.get("vram_gb", 180)),
        driver=str(raw.get("driver", "595.45.04")),
        pace=DEFAULT_PACE | raw.get("pace", {}),
        faults=tuple(str(fault) for fault in raw.get("faults", ())),
    )


def installed(package: str) -> str | None:
    """Version of ``package`` in this container; ``""`` when the container's packages are not known, None if absent."""
    listed = os.environ.get("TWIN_PACKAGES")
    if listed is None:
        return ""
    versions = dict(entry.split("==", 1) for entry in listed.split(",") if "==" in entry)
    return versions.get(package)


def require(*packages: str, module: dict[str, str] | None = None) -> None:
    """Exit as a failed import does when one of ``packages`` is absent."""
    for package in packages:
        if installed(package) is None:
            name = (module or {}).get(package, package)
            die(f"ModuleNotFoundError: No module named '{name}'")


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
