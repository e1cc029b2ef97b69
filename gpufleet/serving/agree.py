"""What the roles must agree on, derived once from the fleet file. Pure."""

from __future__ import annotations

from gpufleet.domain.nodes import NodeName, Role
from gpufleet.spec.feeding import feeding
from gpufleet.spec.model import Engine, Fleet

_LAYOUT_FP8 = 10
_LAYOUT_BF16_OFFSET = 40
_LAYOUT_NO_MTP_OFFSET = 1000


def layout_version(engine: Engine) -> int:
    """TileRT's number for the KV layout of profile glm5: 10 fp8, 50 bf16, 1000 more without MTP."""
    return (
        _LAYOUT_FP8
        + (_LAYOUT_BF16_OFFSET if engine.kv_cache_dtype == "bf16" else 0)
        + (0 if engine.mtp else _LAYOUT_NO_MTP_OFFSET)
    )


def engine_of(fleet: Fleet, node: NodeName) -> Engine:
    """The launch settings of a node's pool."""
    return fleet.pools[node.pool].engine


def max_seq_len(fleet: Fleet, engine: Engine) -> int:
    """Tokens of prompt and answer together."""
    return engine.max_seq_len or fleet.model.max_seq_len


def senders(engine: Engine) -> int:
    """TILERT_PD_SENDERS of a prefill node: one sender per tensor-parallel rank."""
    return engine.senders or engine.tensor_parallel


def senders_for_decode(fleet: Fleet, node: NodeName) -> int:
    """TILERT_PD_SENDERS of a decode node: its own setting, else that of the prefill node that feeds it."""
    own = engine_of(fleet, node)
    prefill = feeding(fleet).get(node)
    return own.senders or (senders(engine_of(fleet, prefill)) if prefill else own.tensor_parallel)


def hands_over_to(fleet: Fleet) -> tuple[bool, bool]:
    """Whether prefill nodes feed TileRT decode nodes, and whether they feed native ones."""
    return bool(fleet.nodes_of(Role.DECODE)), bool(fleet.nodes_of(Role.NATIVE))
