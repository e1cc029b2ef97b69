"""Stand-in for ``ibstat``: the node's RDMA ports."""

from __future__ import annotations

import sys

from gpufleet.twin import nodefile


def main(argv: list[str]) -> int:
    """List the adapters (``-l``), or describe all or one of them."""
    node = nodefile.load()
    names = [f"mlx5_{i}" for i in range(int(node.rdma["devices"]))]
    down = node.fault("rdma-down") is not None
    if not names:
        print("ibpanic: [4711] main: stat of IB device '(null)' failed: No such file or directory", file=sys.stderr)
        return 255
    if argv == ["-l"]:
        print("\n".join(names))
        return 0
    for index, name in enumerate(names):
        if not argv or argv[0] == name:
            print(_describe(index, name, int(node.rdma["gbps"]), down=down))
    return 0 if not argv or argv[0] in names else 255


def _describe(index: int, name: str, gbps: int, *, down: bool) -> str:
    guid = f"0x{0xA088C20300000000 + index:016x}"
    state, physical, rate = ("Down", "Disabled", 10) if down else ("Active", "LinkUp", gbps)
    return f"""CA '{name}'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.43.1014
\tHardware version: 0
\tNode GUID: {guid}
\tSystem image GUID: {guid}
\tPort 1:
\t\tState: {state}
\t\tPhysical state: {physical}
\t\tRate: {rate}
\t\tBase lid: {index + 1}
\t\tLMC: 0
\t\tSM lid: 1
\t\tCapability mask: 0xa751e848
\t\tPort GUID: {guid}
\t\tLink layer: InfiniBand"""
