"""What HAProxy is told, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from gpufleet.spec.model import RequestClass


@dataclass(frozen=True)
class Probe:
    """A URL that must answer 200: ``http://host:port/health``."""

    host: str
    port: int
    path: str = "/health"


@dataclass(frozen=True)
class Server:
    """One thing behind HAProxy."""

    name: str
    """``cell-decode-0`` or ``native``; callers see it in the ``x-gpufleet-served-by`` header."""
    host: str
    port: int
    probes: tuple[Probe, ...] = ()
    """All must answer, else the server gets no requests; empty means ``/health`` of the server itself. A cell lists its
    pd_router, its decode node and its prefill node: pd_router calls itself healthy when those behind it are dead."""


@dataclass(frozen=True)
class ChannelRule:
    """How one channel's requests are routed."""

    name: str
    request_class: RequestClass
    priority: int


@dataclass(frozen=True)
class RouterConfig:
    """Everything the rendered haproxy.cfg depends on."""

    fleet: str
    listen_host: str
    listen_port: int
    directory: str
    """Absolute; holds haproxy.cfg, keys.map, the runtime socket, the PID file and the certificate."""
    tls: bool
    cells: tuple[Server, ...]
    native: tuple[Server, ...]
    """The vllm-router(s)."""
    channels: tuple[ChannelRule, ...]
    spill_queue: int
    queue_timeout_s: int
    without_max_tokens_native: bool
