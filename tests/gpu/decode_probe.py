"""TileRT's real decode server on CUDA with a stub engine, which keeps what arrived: decode_probe.py CTRL HTTP MAX_SEQ.

``/probe/ref`` takes a request's KV as the reference of a name, ``/probe/save`` and ``/probe/load`` carry references
between nodes, ``/probe/compare`` tells which share of a request's bytes equals each reference.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import torch
import uvicorn
from tilert.pd_vllm import decode_server, receive_server
from tilert.pd_vllm.engine_iface import StubEngine
from tilert.pd_vllm.profiles import base
from tilert.pd_vllm.profiles.mla_nsa import ConvertedRequest

arrived: dict[str, torch.Tensor] = {}
references: dict[str, torch.Tensor] = {}


def keep(buffer: Any, start: int, max_seq: int, received: Any, devices: int = 1) -> ConvertedRequest:
    """In the place of the conversion: copy what arrived to the host, and wipe the buffer."""
    torch.cuda.synchronize()
    kv = buffer if torch.is_tensor(buffer) else buffer[0]
    arrived[received.rid] = kv.cpu().clone()
    kv.zero_()
    torch.cuda.synchronize()
    last, first = received.last_prompt_token, received.first_token_id
    return ConvertedRequest(received.rid, received.seq_len, last, first, received.sampling, [])


def share(seen: torch.Tensor, reference: torch.Tensor) -> float:
    """Of the bytes that either of them has."""
    used = (reference != 0) | (seen != 0)
    return round(float((seen[used] == reference[used]).float().mean()), 4)


def main(ctrl: int, http: int, max_seq: int) -> None:
    """Serve."""
    logging.basicConfig(level=logging.INFO)
    profile = base.get_profile("glm5")
    profile.configure("fp8")
    profile.convert = keep
    options = {"max_seq_len": max_seq, "ctrl_port": ctrl, "transport": "nixl", "buffer_device": "cuda:0"}
    app = decode_server.build_app(receive_server.ReceiveServer(profile, **options), StubEngine())

    @app.post("/probe/ref")
    def ref(body: dict[str, str]) -> dict[str, int]:
        references[body["name"]] = arrived.pop(body["rid"])
        return {"bytes": int((references[body["name"]] != 0).sum())}

    @app.post("/probe/save")
    def save(body: dict[str, str]) -> dict[str, str]:
        torch.save(references[body["name"]], body["path"])
        return {}

    @app.post("/probe/load")
    def load(body: dict[str, str]) -> dict[str, str]:
        references[body["name"]] = torch.load(body["path"])
        return {}

    @app.post("/probe/compare")
    def compare(body: dict[str, str]) -> dict[str, float]:
        seen = arrived.pop(body["rid"])
        return {name: share(seen, reference) for name, reference in references.items()}

    uvicorn.run(app, host="127.0.0.1", port=http, log_level="warning")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
