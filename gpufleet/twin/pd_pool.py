"""Decode nodes of a pd_router: who is free, what they can do. A dead node stays in the list, as in the real one."""

from __future__ import annotations

import threading
import time

from gpufleet.twin.capabilities import NodeCapabilities
from gpufleet.twin.nodefacts import log
from gpufleet.twin.upstream import UpstreamError, fetch

CAPABILITIES_SECONDS = 60.0
_PROBE_SECONDS = 2.0


class DecodeNode:
    """One ``host:ctrl_port:http_port`` of --decode."""

    def __init__(self, spec: str) -> None:
        """Raises ValueError when ``spec`` does not have that form."""
        host, ctrl, http = spec.rsplit(":", 2)
        self.host = host
        self.ctrl_port = int(ctrl)
        self.url = f"http://{host}:{int(http)}"
        self.busy = False
        self.known: tuple[NodeCapabilities, float] | None = None


class Pool:
    """Hands out the first node that is not busy; the order of waiting callers is not kept."""

    def __init__(self, nodes: list[DecodeNode], queue_timeout: float) -> None:
        self.nodes = nodes
        self.queue_timeout = queue_timeout
        self._changed = threading.Condition()

    def acquire(self) -> Lease | None:
        """A node, or None when none came free within --queue-timeout."""
        deadline = time.monotonic() + self.queue_timeout
        with self._changed:
            while True:
                for node in self.nodes:
                    if not node.busy:
                        node.busy = True
                        return Lease(self, node)
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return None
                self._changed.wait(remaining)

    def give_back(self, node: DecodeNode) -> None:
        """``node`` is free again."""
        with self._changed:
            node.busy = False
            self._changed.notify()

    def capabilities(self) -> NodeCapabilities:
        """What every node can do; one that does not answer can do nothing optional, and is asked again each time."""
        result = NodeCapabilities(penalties=True, ignore_eos=True)
        for node in self.nodes:
            result = result.intersect(_node_capabilities(node))
        return result


def _node_capabilities(node: DecodeNode) -> NodeCapabilities:
    if node.known and time.monotonic() - node.known[1] < CAPABILITIES_SECONDS:
        return node.known[0]
    try:
        answer = fetch("GET", f"{node.url}/capabilities", timeout=_PROBE_SECONDS)
    except UpstreamError as error:
        log(f"capability probe failed for {node.url} ({error}); treating every optional field as unsupported")
        return NodeCapabilities()
    offered = (answer.json() or {}).get("capabilities") or {}
    caps = NodeCapabilities(offered.get("penalties") is True, offered.get("ignore_eos") is True)
    node.known = (caps, time.monotonic())
    return caps


class Lease:
    """A node held for one request, from its prefill to its last token."""

    def __init__(self, pool: Pool, node: DecodeNode) -> None:
        self._pool = pool
        self.node = node
        self.rid: str | None = None
        self.dispatched = False
        self._released = False

    def release(self, *, terminated: bool = False) -> None:
        """Give the node back; a decode that may still run there is cancelled."""
        if self._released:
            return
        self._released = True
        self._pool.give_back(self.node)
        if self.dispatched and not terminated and self.rid is not None:
            threading.Thread(target=_cancel, args=(self.node, self.rid), daemon=True).start()


def _cancel(node: DecodeNode, rid: str) -> None:
    try:
        fetch("POST", f"{node.url}/pd/cancel", {"rid": rid}, timeout=5)
    except UpstreamError:
        log(f"cancel POST failed for {rid}")
