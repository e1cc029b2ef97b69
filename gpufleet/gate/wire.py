"""Messages of TileRT's control port: a 4-byte big-endian length, then JSON (tilert 0.1.6.post3, pd_vllm/wire.py)."""

from __future__ import annotations

import json
from asyncio import StreamReader
from dataclasses import dataclass
from typing import Any

MESSAGE_LIMIT = 16 << 20


class BadMessage(ValueError):
    """Not a control message."""


@dataclass(frozen=True)
class Frame:
    """One message, and the bytes it came as."""

    raw: bytes
    message: dict[str, Any]


async def read_frame(reader: StreamReader) -> Frame:
    """The next message.

    Raises:
        BadMessage: too large, or not a JSON object.
        asyncio.IncompleteReadError: the peer closed before its end.
    """
    header = await reader.readexactly(4)
    size = int.from_bytes(header, "big")
    if size > MESSAGE_LIMIT:
        raise BadMessage(f"control message of {size} bytes")
    data = await reader.readexactly(size)
    try:
        message = json.loads(data)
    except ValueError as error:
        raise BadMessage(f"control message is no JSON: {error}") from None
    if not isinstance(message, dict):
        raise BadMessage("control message is no object")
    return Frame(header + data, message)
