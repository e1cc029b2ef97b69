"""A rented machine of the mock provider: ``python -m gpufleet.twin.node ROOT`` boots it and serves SSH until SIGTERM.

Reads ``ROOT/node.json`` (see `gpufleet.twin.nodefile`). Authentication is by public key against ``authorized_keys``
alone; commands are real shell commands that find the node's stand-ins first on PATH.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from gpufleet.twin import layout, nodefile
from gpufleet.twin.docker.boot import start_at_boot
from gpufleet.twin.inside import start_container


def _wait_for_boot(node: nodefile.Node) -> None:
    """Sleep until the simulated boot is over, counted from the creation: a process started again need not wait."""
    created = node.facts.get("created") or (node.root / "node.json").stat().st_mtime
    since = datetime.fromisoformat(created).timestamp() if isinstance(created, str) else float(created)
    time.sleep(max(0.0, since + float(node.facts["boot_seconds"]) / node.time_scale - time.time()))


def _listen(node: nodefile.Node) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((node.facts["address"], int(node.facts["ssh_port"])))
    listener.listen(128)
    return listener


def _stop(*_: object) -> NoReturn:
    raise SystemExit(0)


def main(argv: list[str]) -> int:
    """Boot the node whose root is named, and serve SSH until SIGTERM."""
    if len(argv) != 1:
        print("usage: python -m gpufleet.twin.node ROOT", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _stop)
    node = nodefile.load(Path(argv[0]).resolve())
    sys.modules.setdefault("invoke", None)  # type: ignore[arg-type]  # a third of what importing paramiko costs, unused
    from gpufleet.twin.sshd import Sshd  # while the boot would take its time

    _wait_for_boot(node)
    layout.prepare_root(node.root, node.facts)
    start_at_boot(node)
    if node.fault("ssh-dead") is not None:
        signal.pause()
    listener = _listen(node)
    start_container(node)
    sshd = Sshd(node)
    try:
        sshd.serve(listener)
    except SystemExit:
        sshd.close()
        os._exit(0)  # threads of open connections must not hold up the end


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
