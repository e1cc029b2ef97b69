"""Stand-in for ``ibv_devinfo -l``: the names of the node's RDMA adapters."""

from __future__ import annotations

import sys

from gpufleet.twin import nodefile


def main(argv: list[str]) -> int:
    """List the adapters."""
    count = int(nodefile.load().rdma["devices"])
    if argv not in (["-l"], ["--list"]):
        print("ibv_devinfo: this stand-in knows -l alone", file=sys.stderr)
        return 1
    if not count:
        print("No IB devices found", file=sys.stderr)
        return 255
    print(f"{count} HCAs found:")
    for index in range(count):
        print(f"\tmlx5_{index}")
    print()
    return 0
