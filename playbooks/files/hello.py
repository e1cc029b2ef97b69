"""Asks TileRT's control port what it is: ``hello.py``, inputs GF_PEER_* and GF_EXPECT_*. Standard library only.

The port greets every connection with one length-prefixed JSON message (big-endian 32-bit length). Closing right after
takes no slot. Differences would otherwise show as a hang of 120 seconds at the first request.
"""

import json
import os
import socket
import sys

EXPECTED = {
    "protocol_version": "GF_EXPECT_PROTOCOL",
    "layout_version": "GF_EXPECT_LAYOUT",
    "transport": "GF_EXPECT_TRANSPORT",
    "senders": "GF_EXPECT_SENDERS",
    "max_seq_len": "GF_EXPECT_MAX_SEQ_LEN",
}
TIMEOUT = 10
MAX_LENGTH = 1 << 24


def receive(sock, count):
    data = b""
    while len(data) < count:
        chunk = sock.recv(count - len(data))
        if not chunk:
            raise SystemExit(f"{where} closed the connection without a greeting: it is no TileRT control port")
        data += chunk
    return data


def greeting():
    with socket.create_connection((os.environ["GF_PEER_IP"], int(os.environ["GF_PEER_PORT"])), TIMEOUT) as sock:
        length = int.from_bytes(receive(sock, 4), "big")
        if length > MAX_LENGTH:
            raise SystemExit(f"{where} is no TileRT control port")
        return json.loads(receive(sock, length))


def difference(key, expected, seen):
    if key == "max_seq_len" and isinstance(seen, int) and seen >= int(expected):
        return ""
    return "" if str(seen) == expected else f"{key} is {seen}, the prefill node has {expected}"


def main():
    try:
        hello = greeting()
    except OSError as problem:
        raise SystemExit(f"{where} cannot be reached from this node: {problem.strerror or 'timed out'}") from None
    except ValueError:
        raise SystemExit(f"{where} is no TileRT control port") from None
    if not isinstance(hello, dict) or hello.get("magic") != "tilert-pd":
        raise SystemExit(f"{where} is no TileRT control port")
    differences = [difference(key, os.environ[name], hello.get(key)) for key, name in EXPECTED.items()]
    if any(differences):
        print(f"decode node {where}: " + "; ".join(d for d in differences if d))
        return 3
    return 0


where = f"{os.environ['GF_PEER_IP']}:{os.environ['GF_PEER_PORT']}"
if __name__ == "__main__":
    sys.exit(main())
