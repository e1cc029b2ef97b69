"""How many connections to a port of this machine are open: ``connections.py ADDRESS PORT``. Standard library only."""

import ipaddress
import sys
from pathlib import Path

OPEN = ("01", "04", "05", "08")
"""Established, or closed by one side only (include/net/tcp_states.h)."""


def kernel_text(address):
    """An address as /proc/net/tcp shows it: 32-bit words, each least significant byte first."""
    packed = ipaddress.ip_address(address).packed
    return "".join(packed[i : i + 4][::-1].hex() for i in range(0, len(packed), 4)).upper()


def main():
    here = kernel_text(sys.argv[1])
    ours = {f"{here}:{int(sys.argv[2]):04X}", f"0000000000000000FFFF0000{here}:{int(sys.argv[2]):04X}"}
    rows = [
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        if Path(table).exists()
        for line in Path(table).read_text().splitlines()[1:]
    ]
    print(sum(row[1] in ours and row[3] in OPEN for row in rows))


if __name__ == "__main__":
    main()
