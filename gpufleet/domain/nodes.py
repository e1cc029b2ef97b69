"""Names of nodes and the roles they play."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpufleet.errors import UsageError


class Role(StrEnum):
    """What a pool's nodes do in the data plane."""

    PREFILL = "prefill"
    """vLLM prefill; large VRAM; feeds decode and native nodes with KV cache."""
    DECODE = "decode"
    """TileRT decode; one request at a time per node."""
    NATIVE = "native"
    """vLLM's own decode; many requests at a time."""


@dataclass(frozen=True, order=True)
class NodeName:
    """``pool/index``: how users, logs and the ledger name a node. Stable across replacements of the rental."""

    pool: str
    index: int

    def __str__(self) -> str:
        return f"{self.pool}/{self.index}"

    @property
    def slug(self) -> str:
        """The name where ``/`` is not allowed (container names, HAProxy server names): ``decode-0``."""
        return f"{self.pool}-{self.index}"

    @classmethod
    def parse(cls, text: str) -> NodeName:
        """Read ``decode/0``.

        Raises:
            UsageError: when the text has another shape.
        """
        pool, slash, index = text.partition("/")
        if not pool or not slash or not index.isdecimal():
            raise UsageError(f"'{text}' is not a node name", hint="name a node as pool/index, e.g. decode/0")
        return cls(pool, int(index))
