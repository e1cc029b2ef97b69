"""Loopback addresses for the mock's nodes."""

from __future__ import annotations

import ipaddress
import socket
import zlib
from collections.abc import Collection

from gpufleet.providers.errors import CapacityError


def pick(network: str, port: int, *, taken: Collection[str], salt: str) -> str:
    """An address of the network that no living node of this market has and where nobody listens on ``port``.

    Each market starts at another place (by ``salt``), so that two markets on one machine stay apart; an address comes
    back into use after its node ended, as with real providers.

    Raises:
        CapacityError: none is free.
    """
    block = ipaddress.IPv4Network(network)
    offset = zlib.crc32(salt.encode()) % block.num_addresses
    for step in range(block.num_addresses):
        address = block[(offset + step) % block.num_addresses]
        if address.packed[3] in {0, 255} or str(address) in taken:
            continue
        if _is_free(str(address), port):
            return str(address)
    raise CapacityError(f"no free address left in {network}")


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
