"""How a gate is started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ADMISSION_ATTEMPTS = 5
"""How often a rank asks a busy decode node: ``tilert_admission_attempts`` of tilert 0.1.6.post3."""


@dataclass(frozen=True)
class Address:
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @staticmethod
    def parse(text: str) -> Address:
        """``IP:PORT`` or ``http://IP:PORT``; ValueError when it is neither."""
        host, colon, port = text.removeprefix("http://").rstrip("/").rpartition(":")
        if not colon or not host or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"want HOST:PORT, got {text!r}")
        return Address(host, int(port))


@dataclass(frozen=True)
class GateConfig:
    """Times are seconds."""

    listen: Address
    upstream: Address
    """vLLM on the same node."""
    relay_host: str = "127.0.0.1"
    """Where vLLM's ranks reach the gate."""
    state: Path | None = None
    """A file that exists while a hand-over runs, so that a restarted gate knows of it; without one it assumes so."""
    priority: int | None = None
    """vLLM's ``priority`` for hand-overs that bring none in a header; lower is sooner. None leaves the field alone."""
    token_bytes: int = 0
    """KV bytes of one token, for metrics; 0 when nobody said."""
    attempts: int = ADMISSION_ATTEMPTS
    queue_s: float = 60.0
    handover_s: float = 300.0
    """From sending to vLLM until the KV has landed."""
    connect_s: float = 10.0
    """For reaching a decode node, and for ranks to turn up once vLLM has answered."""
    settle_s: float = 60.0
    """How long no hand-over starts when vLLM may still run one that the gate has lost sight of."""
    quarantine_s: float = 120.0
    """How long a decode node gets no KV after a rank broke off while it wrote there."""
    drain_s: float = 30.0
    """How long requests may go on after SIGTERM."""
