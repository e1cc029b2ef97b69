"""A gate's life: listen, serve, and on SIGTERM let what runs come to its end."""

from __future__ import annotations

import asyncio
import signal

from gpufleet.gate.config import Address, GateConfig
from gpufleet.gate.gate import Gate
from gpufleet.gate.metrics import Metrics
from gpufleet.gate.proxy import Proxy
from gpufleet.gate.streams import Listener


class Service:
    """A gate that listens."""

    def __init__(self, config: GateConfig) -> None:
        self._config = config
        metrics = Metrics()
        self.gate = Gate(config, metrics)
        self._proxy = Proxy(config, self.gate, metrics)
        self._listener = Listener(self._proxy.serve)

    async def start(self) -> Address:
        """Listen; returns where. OSError when that is not possible, or the state file cannot be written."""
        if self._config.state is not None:
            self._config.state.parent.mkdir(parents=True, exist_ok=True)
        self.gate.begin()
        own = self._config.listen
        return Address(own.host, await self._listener.open(own.host, own.port))

    async def stop(self) -> None:
        """Take no new connections and wait ``drain_s`` for those at work."""
        self._listener.close()
        self._proxy.close_idle()
        waiting = [*self._listener.tasks, asyncio.ensure_future(self.gate.drain())]
        _, late = await asyncio.wait(waiting, timeout=self._config.drain_s)
        for task in late:
            task.cancel()


async def serve(config: GateConfig) -> None:
    """Run until SIGTERM or SIGINT."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    service = Service(config)
    await service.start()
    await ended.wait()
    await service.stop()
