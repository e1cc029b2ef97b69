"""A prefill node with TileRT's real connector: vLLM's engine loop and CUDA are stand-ins, the rest is the wheel.

Usage: kv_prefill.py HOST PORT [WRITE_FAULTS]. Both roles of the connector run, with two ranks. Each request's KV
consists of one byte, its last prompt token, so that a decode node can tell whose bytes it got.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import json
import logging
import mmap
import os
import queue
import random
import sys
import threading
import time
import types
from pathlib import Path
from types import SimpleNamespace as Named
from typing import Any

SENDERS, MAX_SEQ, BLOCKS, PAGE, BATCH = 2, 128, 64, 64, 8
os.environ |= {"TILERT_PD_SENDERS": str(SENDERS), "TILERT_PD_SHARDS": "1", "TILERT_PD_PROBE_ADDR": "127.0.0.1"}

import torch  # noqa: E402 - tilert reads the environment when it is imported


def stub_vllm() -> None:
    """As much of vLLM as the connector imports, and CUDA calls that do nothing."""
    base = "vllm.distributed.kv_transfer.kv_connector.v1.base"
    parts = base.split(".")
    for depth in range(1, len(parts) + 1):
        sys.modules[".".join(parts[:depth])] = types.ModuleType(parts[depth - 1])

    class Connector:
        def __init__(self, config: Any, role: str, kv: object = None) -> None:
            self._vllm_config = config

        def _get_connector_metadata(self) -> Any:
            return self._connector_metadata  # type: ignore[attr-defined]

    module: Any = sys.modules[base]
    module.KVConnectorBase_V1, module.KVConnectorMetadata, module.SupportsHMA = Connector, type("M", (), {}), object
    nothing = type("Nothing", (), {name: lambda self, *a: None for name in ("record", "synchronize", "wait_event")})
    cuda: Any = torch.cuda
    cuda.Event = nothing
    cuda.Stream = cuda.current_stream = lambda *a, **k: nothing()
    cuda.device = cuda.stream = lambda *a: contextlib.nullcontext()
    cuda.synchronize = lambda *a: None


stub_vllm()
from tilert.pd_vllm.prefill_connector import TileRTConnector  # noqa: E402
from tilert.pd_vllm.profiles.mla_nsa import KI_PAGE_BYTES, _Reg  # noqa: E402


class Transport:
    """RDMA over a file in shared memory that the decode node names in its hello."""

    name = "nixl"

    def __init__(self, faults: float) -> None:
        self._faults = faults
        self._maps: dict[str, tuple[mmap.mmap, int]] = {}

    def write(self, hello: dict[str, Any], sources: list[int], targets: list[int], lengths: list[int]) -> None:
        meta = json.loads(hello["nixl_meta"])
        address = self._mapped(meta["path"])
        for source, target, length in zip(sources, targets, lengths, strict=True):
            ctypes.memmove(address + target - meta["base"], source, length)
        if random.random() < self._faults:
            raise RuntimeError("nixl xfer failed")

    def _mapped(self, path: str) -> int:
        if path not in self._maps:
            with Path(path).open("r+b") as file:
                memory = mmap.mmap(file.fileno(), 0)
            self._maps[path] = (memory, ctypes.addressof(ctypes.c_char.from_buffer(memory)))
        return self._maps[path][1]


class Job:
    """A request in the engine."""

    def __init__(self, number: int, prompt: list[int], params: object) -> None:
        self.id = f"cmpl-x{number:09d}x{random.getrandbits(48):012x}"
        self.prompt = prompt
        self.params = {"kv_transfer_params": params}
        self.blocks: list[int] = []
        self.computed = 0
        self.aborted = False
        self.done = asyncio.Event()


class Engine:
    """vLLM's loop: each step takes up to ``BATCH`` requests, a page of each, and runs all layers."""

    def __init__(self, faults: float) -> None:
        extra = {"tilert_model": "glm5", "tilert_transport": "nixl", "tilert_max_seq_len": MAX_SEQ}
        config = Named(
            kv_transfer_config=Named(kv_connector_extra_config=extra), model_config=Named(max_model_len=MAX_SEQ)
        )
        self.waiting: queue.Queue[Job] = queue.Queue()
        self._free = list(range(BLOCKS))
        self._scheduler = TileRTConnector(config, "scheduler")
        self._ranks = [self._rank(TileRTConnector(config, "worker"), rank, faults) for rank in range(SENDERS)]
        self._layers = self._ranks[0]._profile.num_layers
        mla = [(n, f"l.{n}.", torch.zeros(BLOCKS, PAGE, 656, dtype=torch.uint8), 0) for n in range(self._layers)]
        ki = [(n, f"i.{n}.", torch.zeros(BLOCKS, KI_PAGE_BYTES, dtype=torch.uint8), 0) for n in range(self._layers)]
        for rank in self._ranks:
            rank._reg = _Reg(mla, ki)
        self._kv = [tensor for _, _, tensor, _ in (*mla, *ki)]
        threading.Thread(target=self._loop, daemon=True).start()

    def _rank(self, connector: Any, rank: int, faults: float) -> Any:
        profile = connector._profile.configure("fp8")
        own = torch.zeros(profile.shard_bytes(MAX_SEQ, SENDERS), dtype=torch.uint8)
        connector._staging = [own if number == rank else None for number in range(SENDERS)]
        connector._tp_rank, connector._transport = rank, Transport(faults)
        threading.Thread(target=connector._sender_loop, daemon=True).start()
        return connector

    def _loop(self) -> None:
        running: list[Job] = []
        finished: set[str] = set()
        while True:
            if not running:
                running.append(self.waiting.get())
                time.sleep(0.001)
            while len(running) < BATCH and not self.waiting.empty():
                running.append(self.waiting.get())
            gone = [job for job in running if job.aborted]
            running = [job for job in running if not job.aborted]
            finished |= {job.id for job in gone}
            done = self._step(running, finished) if running else []
            finished = {job.id for job in done}
            running = [job for job in running if job not in done]
            for job in (*gone, *done):
                self._free += job.blocks
                LOOP.call_soon_threadsafe(job.done.set)

    def _step(self, jobs: list[Job], finished: set[str]) -> list[Job]:
        new, cached = [job for job in jobs if not job.blocks], [job for job in jobs if job.blocks]
        for job in new:
            job.blocks = [self._free.pop() for _ in range(-(-len(job.prompt) // PAGE))]
        sizes = {job.id: min(PAGE, len(job.prompt) - job.computed) for job in jobs}
        output = Named(
            num_scheduled_tokens=sizes,
            finished_req_ids=finished,
            preempted_req_ids=None,
            scheduled_new_reqs=[self._new(job) for job in new],
            scheduled_cached_reqs=Named(
                req_ids=[job.id for job in cached],
                new_block_ids=[None for _ in cached],
                num_computed_tokens=[job.computed for job in cached],
            ),
        )
        self._forward(jobs, self._scheduler.build_connector_meta(output))
        for job in jobs:
            job.computed += sizes[job.id]
        done = [job for job in jobs if job.computed >= len(job.prompt)]
        for job in done:
            self._scheduler.request_finished(Named(request_id=job.id), job.blocks)
        return done

    def _new(self, job: Job) -> Named:
        sampling = Named(extra_args=job.params, repetition_penalty=1.0)
        return Named(
            req_id=job.id, sampling_params=sampling, prompt_token_ids=job.prompt, block_ids=[job.blocks],
            num_computed_tokens=0,
        )  # fmt: skip

    def _forward(self, jobs: list[Job], meta: object) -> None:
        for job in jobs:
            if not job.computed:
                for tensor, block in itertools.product(self._kv, job.blocks):
                    tensor[block].fill_(job.prompt[-1])
        for rank in self._ranks:
            rank._connector_metadata = meta
        for layer in range(self._layers):
            for rank in self._ranks:
                rank._on_layer_done(layer)
        for rank in self._ranks:
            rank.wait_for_save()


async def main(host: str, port: int, faults: float) -> None:
    engine, numbers = Engine(faults), itertools.count()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                size = next((int(line.split(":")[1]) for line in head.split("\r\n") if "content-length" in line), 0)
                body = json.loads(await reader.readexactly(size) or b"{}")
                reply = await complete(body, reader) if head.startswith("post") else b"{}"
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(reply) + reply)
        writer.close()

    async def complete(body: dict[str, Any], reader: asyncio.StreamReader) -> bytes:
        job = Job(next(numbers), body["prompt"], body.get("kv_transfer_params"))
        engine.waiting.put(job)
        while not job.done.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(job.done.wait(), 0.02)
            job.aborted = job.aborted or reader.at_eof()
        return json.dumps({"id": job.id, "choices": [{"logprobs": {"tokens": ["token_id:1"]}}]}).encode()

    server = await asyncio.start_server(serve, host, port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    LOOP = asyncio.new_event_loop()
    LOOP.run_until_complete(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
