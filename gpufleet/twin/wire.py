"""Messages of TileRT's control port: a 4-byte big-endian length, then JSON (tilert 0.1.6.post3, pd_vllm/wire.py)."""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any

MAGIC = "tilert-pd"
PROTOCOL_VERSION = 2
NUM_RANKS = 8
MESSAGE_LIMIT = 16 << 20

Message = dict[str, Any]


def send_msg(sock: socket.socket, message: Message) -> None:
    """Send one message."""
    data = json.dumps(message).encode()
    sock.sendall(struct.pack("!I", len(data)) + data)


def recv_msg(sock: socket.socket) -> Message:
    """Receive one message.

    Raises:
        ConnectionError: the peer closed in the middle.
        ValueError: not a control message.
    """
    (size,) = struct.unpack("!I", recv_exact(sock, 4))
    if size > MESSAGE_LIMIT:
        raise ValueError(f"control message too large: {size}")
    message = json.loads(recv_exact(sock, size))
    if not isinstance(message, dict):
        raise ValueError(f"control message is no object: {message!r}")  # noqa: TRY004 - what the reader catches
    return message


def recv_exact(sock: socket.socket, size: int) -> bytes:
    """Exactly ``size`` bytes, else ConnectionError."""
    data = bytearray()
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        if not chunk:
            raise ConnectionError("connection closed mid-message")
        data += chunk
    return bytes(data)


def derive_rid(request_id: str) -> str:
    """The id that both legs of a request agree on.

    TileRT drops vLLM's prefix, then a last part of up to 8 hex digits (vLLM's own suffix), then one of up to 3
    decimal digits. An id whose own last part looks like that loses it on one side only, and the legs never meet.
    """
    rid = request_id
    for prefix in ("chatcmpl-", "cmpl-"):
        if rid.startswith(prefix):
            rid = rid[len(prefix) :]
            break
    head, dash, last = rid.rpartition("-")
    if dash and len(last) <= 8 and all(c in "0123456789abcdef" for c in last):
        rid = head
    head, dash, last = rid.rpartition("-")
    if dash and last.isdigit() and len(last) <= 3:
        rid = head
    return rid


def sender_ranks() -> int:
    """How many prefill ranks send, from TILERT_PD_SENDERS."""
    return max(1, min(_env_int("TILERT_PD_SENDERS", 8), NUM_RANKS))


def shards() -> int:
    """Over how many cards the buffers are spread, from TILERT_PD_SHARDS."""
    return max(1, _env_int("TILERT_PD_SHARDS", 8))


def _env_int(name: str, default: int) -> int:
    return int((os.environ.get(name) or str(default)).strip() or default)


def layout_version(model: str, kv_cache_dtype: str) -> int:
    """The KV layout number that both ends compare.

    Raises:
        KeyError: no such model profile.
        ValueError: no such cache type.
    """
    base = {"glm5": 10, "dsv32": 11, "glm5_2": 12}[profile_name(model)]
    if (os.environ.get("TILERT_PD_NO_MTP") or "0").strip().lower() not in ("0", "false", "no", "off"):
        base += 1000
    dtype = (kv_cache_dtype or "").lower()
    if dtype in ("fp8_ds_mla", "fp8", "fp8_e4m3"):
        return base
    if dtype in ("bf16", "bfloat16", "auto"):
        return base + 40
    raise ValueError(f"unknown kv_cache_dtype {kv_cache_dtype!r}; want fp8_ds_mla, fp8_rocm or bf16")


_PROFILES = {
    "glm5": ("glm5", "glm_5", "glm-5"),
    "glm5_2": ("glm5_2", "glm_5_2", "glm-5.2", "glm5.2", "glm52", "glm5_3", "glm_5_3", "glm-5.3", "glm5.3", "glm53"),
    "dsv32": ("dsv32", "deepseek_v3_2", "deepseek-v3.2", "dsv3.2", "v32"),
}


def profile_name(model: str) -> str:
    """The profile behind an alias; KeyError when there is none."""
    for name, aliases in _PROFILES.items():
        if model in aliases:
            return name
    raise KeyError(f"unknown model profile {model!r}; registered: {sorted(_PROFILES)}")


def local_ip(own_address: str) -> str:
    """The address a node would advertise, found as the real one finds it: towards TILERT_PD_PROBE_ADDR.

    Raises:
        OSError: the probe address does not resolve, or there is no route to it.
    """
    probe = os.environ.get("TILERT_PD_PROBE_ADDR", "8.8.8.8")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((probe, 1))
    return own_address
