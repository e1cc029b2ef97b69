"""TCP connections whose owner learns at once when the peer hangs up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gpufleet.gate.http1 import HEAD_LIMIT


class Peer:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Event) -> None:
        self.reader = reader
        self.writer = writer
        self.gone = gone
        """Set when the peer has closed its side or the connection broke."""

    async def send(self, data: bytes) -> None:
        """Write, at the peer's pace; ConnectionError when it is gone."""
        self.writer.write(data)
        await self.writer.drain()

    def close(self) -> None:
        """Flush and close; never fails."""
        self.writer.close()

    def abort(self) -> None:
        """Close at once, as a broken connection looks."""
        self.writer.transport.abort()


class _Protocol(asyncio.StreamReaderProtocol):
    """A stream whose end is seen without reading it."""

    def __init__(self, reader: asyncio.StreamReader, gone: asyncio.Event) -> None:
        super().__init__(reader)
        self._gone = gone

    def eof_received(self) -> bool | None:
        self._gone.set()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
        super().connection_lost(exc)


async def connect(host: str, port: int, timeout_s: float) -> Peer:
    """Connect; OSError (TimeoutError too) when that fails."""
    loop = asyncio.get_running_loop()
    reader, gone = asyncio.StreamReader(HEAD_LIMIT), asyncio.Event()
    protocol = _Protocol(reader, gone)
    async with asyncio.timeout(timeout_s):
        transport, _ = await loop.create_connection(lambda: protocol, host, port)
    return Peer(reader, asyncio.StreamWriter(transport, protocol, reader, loop), gone)


Serve = Callable[[Peer], Awaitable[None]]


class Listener:
    """Accepts connections and runs a task for each."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._server: asyncio.Server | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    async def open(self, host: str, port: int) -> int:
        """Listen; returns the port. OSError when it is taken."""
        self._server = await asyncio.get_running_loop().create_server(self._protocol, host, port, backlog=1024)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Accept no more; connections go on."""
        if self._server is not None:
            self._server.close()

    def _protocol(self) -> asyncio.BaseProtocol:
        return _Accepted(self._start)

    def _start(self, peer: Peer) -> None:
        task = asyncio.ensure_future(self._run(peer))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _run(self, peer: Peer) -> None:
        try:
            await self._serve(peer)
        finally:
            peer.close()


class _Accepted(_Protocol):
    """The server's end: hands itself out as a Peer when it is connected."""

    def __init__(self, start: Callable[[Peer], None]) -> None:
        self._reader = asyncio.StreamReader(HEAD_LIMIT)
        super().__init__(self._reader, asyncio.Event())
        self._start = start

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(transport, asyncio.WriteTransport)
        loop = asyncio.get_running_loop()
        self._start(Peer(self._reader, asyncio.StreamWriter(transport, self, self._reader, loop), self._gone))
