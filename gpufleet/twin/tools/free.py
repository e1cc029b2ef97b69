"""Stand-in for ``free``: the node's memory, not this machine's."""

from __future__ import annotations

import sys

from gpufleet.twin import nodefile

UNITS = {"-b": 1, "--bytes": 1, "-k": 1 << 10, "--kibi": 1 << 10, "-m": 1 << 20, "--mebi": 1 << 20}
UNITS |= {"-g": 1 << 30, "--gibi": 1 << 30, "-h": 1 << 30, "--human": 1 << 30}


def main(argv: list[str]) -> int:
    """Print the table in the unit asked for."""
    unit, suffix = 1 << 10, ""
    for flag in argv:
        if flag not in UNITS:
            print(f"free: unrecognized option '{flag}'", file=sys.stderr)
            return 1
        unit, suffix = UNITS[flag], "Gi" if flag in ("-h", "--human") else ""
    total = int(float(nodefile.load().facts["ram_gb"]) * (1 << 30))
    used = total // 100
    columns = [total, used, total - used - total // 50, 0, total // 50, total - used]
    print(f"{'':7}{''.join(f'{name:>15}' for name in ('total', 'used', 'free', 'shared', 'buff/cache', 'available'))}")
    print(f"{'Mem:':7}{''.join(f'{str(value // unit) + suffix:>15}' for value in columns)}")
    print(f"{'Swap:':7}{''.join(f'{str(0) + suffix:>15}' for _ in range(3))}")
    return 0
