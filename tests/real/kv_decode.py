"""A decode node with TileRT's real HTTP app and control plane; the engine tells whose KV it was given.

Usage: kv_decode.py HOST CTRL_PORT HTTP_PORT [FAULTS]. ``/pd/decode`` answers [first token, bytes of the KV that are the
request's own in millionths]. With FAULTS that share of admissions is refused or slow.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import random
import socket
import sys
import time
from pathlib import Path
from typing import Any

os.environ |= {"TILERT_PD_SENDERS": "2", "TILERT_PD_SHARDS": "1", "TILERT_PD_PROBE_ADDR": "127.0.0.1"}

import numpy
import uvicorn
from tilert.pd_vllm import decode_server, receive_server, transport, wire
from tilert.pd_vllm.engine_iface import StubEngine
from tilert.pd_vllm.profiles import base
from tilert.pd_vllm.profiles.mla_nsa import KI_PAGE_BYTES, PAGE_SIZE, ConvertedRequest

MAX_SEQ, MILLION = 128, 1_000_000
HOST, CTRL, HTTP, FAULTS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])


class Memory(transport.Transport):  # type: ignore[misc]
    """The receive buffer that peers write, as a file in shared memory."""

    name = "nixl"
    path = Path(f"/dev/shm/kv-decode-{os.getpid()}-{CTRL}")
    base = 0
    data: Any = None

    def init(self, host: str) -> None:
        """Nothing to start."""

    def register(self, ptr: int, nbytes: int, dev_id: int, location: str | None = None, host: bool = False) -> None:
        with self.path.open("w+b") as file:
            file.truncate(nbytes)
            Memory.data = numpy.frombuffer(mmap.mmap(file.fileno(), nbytes), dtype=numpy.uint8)
        Memory.base = ptr

    def local_meta(self) -> dict[str, Any]:
        return {"nixl_meta": json.dumps({"path": str(self.path), "base": self.base}), "nixl_dev": 0}


class LocalSocket(socket.socket):
    """Binds to this node's own address instead of all."""

    def bind(self, address: Any) -> None:
        super().bind((f"::ffff:{HOST}", address[1]) if address[0] == "::" else address)


def convert(buffer: object, start: int, max_seq: int, received: Any, devices: int = 1) -> Any:
    """Count the request's own bytes instead of converting them, and wipe the buffer."""
    layers, seq = PROFILE.num_layers, received.seq_len
    pages = -(-seq // PAGE_SIZE)
    planes = ((max_seq, PROFILE._kv_bpt, seq), (max_seq, PROFILE._pe_bpt, seq))
    planes += ((-(-max_seq // PAGE_SIZE), KI_PAGE_BYTES, pages),)
    own = total = at = 0
    for rows, width, used in planes:
        size = layers * rows * width
        plane = Memory.data[at : at + size].reshape(layers, rows * width)[:, : used * width]
        own += int(numpy.count_nonzero(plane == received.last_prompt_token))
        total += plane.size
        at += size
    Memory.data[:] = 0
    return ConvertedRequest(received.rid, seq, received.last_prompt_token, None, None, [own * MILLION // total])


class Teller(StubEngine):  # type: ignore[misc]
    """Decodes nothing: answers what share of the KV was right."""

    share = 0

    def inject(self, converted: Any) -> None:
        self.share = converted.layers[0]

    def decode(self, first_token_id: int, max_tokens: int, sampling: object, **kwargs: Any) -> list[int]:
        self.last_stats = {"finish_reason": "stop"}
        return [first_token_id, self.share]


def with_faults(server: Any) -> None:
    """Refuse or delay some admissions."""
    admit = server._admit

    def faulty(request: dict[str, Any], rid: str, rank: int) -> Any:
        drawn = random.random()
        if drawn < FAULTS / 10:
            return wire.reject_msg("duplicate_rank", rid=rid, rank=rank)
        if drawn < FAULTS:
            return wire.reject_msg("busy", busy_rid="other", busy_state="transferring")
        if drawn < 2 * FAULTS:
            time.sleep(random.random() / 10)
        return admit(request, rid, rank)

    server._admit = faulty


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    transport._BACKENDS["nixl"] = Memory
    PROFILE = base.get_profile("glm5").configure("fp8")
    PROFILE.convert = convert
    receive_server.socket.socket = LocalSocket
    options = {"device": "cpu", "transport": "nixl", "buffer_device": "cpu-plain", "request_timeout": 2.0}
    receiver = receive_server.ReceiveServer(PROFILE, max_seq_len=MAX_SEQ, ctrl_port=CTRL, hostname=HOST, **options)
    receive_server.socket.socket = socket.socket
    with_faults(receiver)
    uvicorn.run(decode_server.build_app(receiver, Teller()), host=HOST, port=HTTP, log_level="critical")
