"""A gate between a vLLM, its ranks and a decode node whose every step a test decides."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpufleet.gate.config import Address, GateConfig
from gpufleet.gate.service import Service

HOST = "127.76.0.1"
SENDERS = 3
DEADLINE = 20.0
CONFIG = GateConfig(Address(HOST, 0), Address(HOST, 0), relay_host=HOST, connect_s=DEADLINE, settle_s=DEADLINE)


async def until(condition: Callable[[], object], what: str) -> None:
    """Poll until ``condition`` is true; fail after a deadline."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"never happened: {what}"
        await asyncio.sleep(0.005)


def frame(message: dict[str, Any]) -> bytes:
    data = json.dumps(message).encode()
    return len(data).to_bytes(4, "big") + data


async def read_frame(reader: asyncio.StreamReader) -> dict[str, Any]:
    size = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), DEADLINE), "big")
    return dict(json.loads(await asyncio.wait_for(reader.readexactly(size), DEADLINE)))


@dataclass
class Answered:
    """What a client got."""

    status: int
    phrase: str
    fields: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The gate's word for what went wrong."""
        return str(json.loads(self.body)["error"]["code"])


async def read_answer(reader: asyncio.StreamReader) -> Answered:
    raw = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE)).decode()
    first, *lines = raw.strip().split("\r\n")
    fields = {line.split(":", 1)[0].lower(): line.split(":", 1)[1].strip() for line in lines}
    body = await reader.readexactly(int(fields.get("content-length", 0)))
    return Answered(int(first.split()[1]), first.split(" ", 2)[2], fields, body)


@dataclass
class Asked:
    """A request as it reached vLLM."""

    head: str
    body: dict[str, Any]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    ranks: list[Any] = field(default_factory=list)
    """Keeps the connections of its ranks open."""

    @property
    def relay(self) -> Address:
        params = self.body["kv_transfer_params"]
        return Address(params["tilert_host"], params["tilert_ctrl_port"])

    async def answer(self, status: int = 200, body: bytes = b'{"id":"chatcmpl-x"}') -> None:
        self.writer.write(f"HTTP/1.1 {status} Fine\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await self.writer.drain()

    def hang_up(self) -> None:
        self.writer.transport.abort()


class Vllm:
    """Takes requests and leaves their answers to the test."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> Address:
        self._server = await asyncio.start_server(self._serve, HOST, port)
        return Address(HOST, self._server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:
            writer.close()
            return
        size = next((int(line.split(":")[1]) for line in head.lower().split("\r\n") if "content-length" in line), 0)
        body = json.loads(await reader.readexactly(size) or b"{}")
        self.asked.append(Asked(head, body, reader, writer))

    async def request(self, number: int) -> Asked:
        """The request of that number, counted from 1."""
        await until(lambda: len(self.asked) >= number, f"request {number} reached vLLM")
        return self.asked[number - 1]


class DecodeNode:
    """Says hello and admits, unless ``refusals`` holds what to say instead."""

    def __init__(self, senders: int = SENDERS) -> None:
        self.hello = {"magic": "tilert-pd", "senders": senders}
        self.refusals: list[str] = []
        self.silent = False
        self.seen: list[dict[str, Any]] = []
        self.open: list[asyncio.StreamWriter] = []
        self.address = Address("", 0)
        self._server: asyncio.Server | None = None

    async def start(self) -> Address:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.address = Address(HOST, self._server.sockets[0].getsockname()[1])
        return self.address

    def die(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self.open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.append(writer)
        try:
            await self._converse(reader, writer)
        except (OSError, EOFError):
            pass
        finally:
            self.open.remove(writer)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.silent:
            await reader.read()
            return
        writer.write(frame(self.hello))
        asked = await read_frame(reader)
        self.seen.append(asked)
        if self.refusals:
            writer.write(frame({"accepted": False, "error": self.refusals.pop(0)}))
            return
        writer.write(frame({"accepted": True, "rid": asked["rid"], "rank": asked["rank"], "generation": 1}))
        while True:
            self.seen.append(await read_frame(reader))


class Rank:
    """One sender of vLLM's connector, step by step."""

    def __init__(self, number: int, rid: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.rid = rid
        self.reader = reader
        self.writer = writer

    @staticmethod
    async def connect(number: int, asked: Asked, rid: str = "x") -> Rank:
        """OSError when the gate does not listen any more."""
        reader, writer = await asyncio.open_connection(asked.relay.host, asked.relay.port)
        rank = Rank(number, rid, reader, writer)
        asked.ranks.append(rank)
        return rank

    async def ask(self) -> bool:
        """Shake hands; whether the rank was admitted. EOFError when it was cut."""
        await read_frame(self.reader)
        self.writer.write(frame({"rid": self.rid, "rank": self.number, "seq_len": 20}))
        answer = await read_frame(self.reader)
        if not answer["accepted"]:
            self.close()
        return bool(answer["accepted"])

    def done(self) -> None:
        """Say that everything has been written, and close."""
        self.writer.write(frame({"done": True, "rid": self.rid, "rank": self.number, "generation": 1}))
        self.close()

    def close(self) -> None:
        self.writer.close()


async def admitted(asked: Asked, ranks: int = SENDERS, rid: str = "x") -> list[Rank]:
    """Ranks that may write now."""
    connected = [await Rank.connect(number, asked, rid) for number in range(ranks)]
    assert all([await rank.ask() for rank in connected])
    return connected


async def landed(asked: Asked) -> None:
    """All ranks from hello to done."""
    for rank in await admitted(asked):
        rank.done()


@dataclass
class Stage:
    """A gate, a scripted vLLM and two decode nodes."""

    gate: Address
    service: Service
    config: GateConfig
    vllm: Vllm = field(default_factory=Vllm)
    one: DecodeNode = field(default_factory=DecodeNode)
    two: DecodeNode = field(default_factory=DecodeNode)
    clients: list[asyncio.StreamWriter] = field(default_factory=list)

    async def send(self, raw: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self.gate.host, self.gate.port)
        self.clients.append(writer)
        writer.write(raw)
        return reader, writer

    async def hand_over(self, node: DecodeNode, fields: str = "", **extra: Any) -> tuple[Any, asyncio.StreamWriter]:
        """Ask as a pd_router does; the answer's future and the connection."""
        params = {"tilert_host": node.address.host, "tilert_ctrl_port": node.address.port}
        body = json.dumps({"prompt": "hi", "kv_transfer_params": params} | extra).encode()
        raw = f"POST /v1/completions HTTP/1.1\r\nContent-Length: {len(body)}\r\n{fields}\r\n".encode() + body
        reader, writer = await self.send(raw)
        return asyncio.ensure_future(read_answer(reader)), writer

    async def get(self, path: str) -> Answered:
        reader, _ = await self.send(f"GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
        return await read_answer(reader)

    async def metric(self, line: str) -> float:
        """The value of one sample of the gate's metrics; 0 when there is none yet."""
        text = (await self.get("/gate/metrics")).body.decode()
        return next((float(row.rsplit(" ", 1)[1]) for row in text.splitlines() if row.startswith(line + " ")), 0.0)

    async def waiting(self, count: int) -> None:
        """Until that many requests queue at the gate."""
        end = time.monotonic() + DEADLINE
        while await self.metric("gpufleet_gate_waiting") != count:
            assert time.monotonic() < end, f"never {count} waiting"


@asynccontextmanager
async def stage(state: Path | None = None, **settings: Any) -> AsyncIterator[Stage]:
    """Everything started; ends with the block."""
    vllm = Vllm()
    upstream = await vllm.start()
    config = replace(CONFIG, upstream=upstream, state=state, drain_s=0.1, **settings)
    service = Service(config)
    if state is None:
        service.gate.begin = lambda: None  # type: ignore[method-assign]
    made = Stage(await service.start(), service, config, vllm)
    await made.one.start()
    await made.two.start()
    try:
        yield made
    finally:
        for writer in (*made.clients, *(asked.writer for asked in vllm.asked), *made.one.open, *made.two.open):
            writer.transport.abort()
        await service.stop()
