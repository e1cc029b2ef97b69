"""How close `up` comes to the time that the nodes themselves need.

The mock's nodes take their time (boot, download, image, conversion, loading), shortened by ``time_scale``. The longest
chain of these is the critical path: no tool can be faster. Printed: path, measured, ratio, our own CPU time.

    python benchmarks/up_speed.py [--scale 60] [NODES ...]
"""

from __future__ import annotations

import argparse
import os
import resource
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from gpufleet.providers.mock.control import stop_all
from gpufleet.twin.nodefile import PACE

BOOT = {"B200": 240.0, "H200": 180.0}
"""Simulated seconds, from the mock's price list."""
IMAGE_GB = 16.0
CHECKPOINT_GB = 705.0


def critical_path(scale: float) -> float:
    """Real seconds of the longest chain: the first decode node's, plus the load of the others that copy from it."""
    download = CHECKPOINT_GB * 8 / PACE["download_gbps"]
    image = IMAGE_GB * 8 / PACE["pull_gbps"] + PACE["pip_seconds"]
    simulated = BOOT["B200"] + max(download, image) + PACE["convert_seconds"] + PACE["load_seconds"]
    return simulated / scale


def fleet(nodes: int, scale: float, port: int) -> dict[str, object]:
    """Two fifths prefill, two fifths decode, one fifth native."""
    cells = nodes * 2 // 5
    return {
        "name": f"bench{nodes}",
        "provider": {"use": "mock", "time_scale": scale, "network": "127.120.0.0/16"},
        "pools": {
            "prefill": {"gpu": "H200:8", "count": cells},
            "decode": {"gpu": "B200:8", "count": cells},
            "native": {"gpu": "H200:8", "count": nodes - 2 * cells},
        },
        "router": {
            "listen": f"127.0.0.1:{port}",
            "channels": {
                "chat": {"class": "interactive", "key": "env:GF_BENCH_KEY"},
                "batch": {"class": "batch", "key": "env:GF_BENCH_BATCH"},
            },
        },
    }


def measure(nodes: int, scale: float) -> float:
    """Seconds of one `up`; the fleet is taken down again."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fleet.yaml"
        file.write_text(yaml.safe_dump(fleet(nodes, scale, 18480)))
        env = {
            **os.environ,
            "GPUFLEET_STATE": f"{folder}/s",
            "GF_BENCH_KEY": secrets.token_hex(),
            "GF_BENCH_BATCH": secrets.token_hex(),
        }
        command = [sys.executable, "-m", "gpufleet"]
        try:
            started = time.monotonic()
            subprocess.run([*command, "up", str(file), "--yes"], env=env, check=True, capture_output=True)
            return time.monotonic() - started
        finally:
            subprocess.run([*command, "down", str(file), "--yes"], env=env, check=False, capture_output=True)
            stop_all(Path(folder) / "s" / "mock")


def main() -> None:
    """Print a line per fleet size."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--scale", type=float, default=60.0, help="simulated seconds per real second")
    arguments.add_argument("nodes", type=int, nargs="*", default=[5, 50])
    options = arguments.parse_args()
    path = critical_path(options.scale)
    for nodes in options.nodes:
        seconds = measure(nodes, options.scale)
        cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(
            f"{nodes:3d} nodes: critical path {path:.1f} s, up {seconds:.1f} s, ratio {seconds / path:.3f}, "
            f"CPU of the CLI {cpu.ru_utime + cpu.ru_stime:.1f} s so far"
        )


if __name__ == "__main__":
    main()
