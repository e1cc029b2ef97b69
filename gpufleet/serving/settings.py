"""What decides how a node runs, as flat fields: what `plan` compares and shows. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gpufleet.domain.nodes import NodeName, Role
from gpufleet.serving.agree import engine_of, max_seq_len, senders
from gpufleet.serving.gate import program
from gpufleet.serving.images import role_image
from gpufleet.spec.feeding import feeding, router_port
from gpufleet.spec.model import Engine, Fleet

FED_BY = "cell.prefill"
ROUTER_PORT = "cell.port"
GATE = "gate"
OFF = "off"


def node_settings(fleet: Fleet, node: NodeName) -> dict[str, str]:
    """Field -> value for one node, for example ``engine.max_seq_len`` -> ``202752``.

    A field that changes nothing on the node (a price limit, the router) is not among them. Addresses are neither: they
    belong to the rental.
    """
    return _settings(fleet, node, feeding(fleet).get(node))


def fleet_settings(fleet: Fleet) -> dict[NodeName, dict[str, str]]:
    """The same for every node: who feeds whom is worked out once."""
    fed = feeding(fleet)
    return {node: _settings(fleet, node, fed.get(node)) for node in fleet.nodes()}


def _settings(fleet: Fleet, node: NodeName, prefill: NodeName | None) -> dict[str, str]:
    role = fleet.role_of(node.pool)
    return {
        **_hardware(fleet, node),
        **_model(fleet),
        **_versions(fleet, role),
        **_engine(fleet, role, engine_of(fleet, node)),
        **_gate(fleet, node),
        **(cell_settings(fleet, node, prefill) if prefill else {}),
        "network.devices": fleet.network.devices or "found on the node",
    }


def cell_settings(fleet: Fleet, decode: NodeName, prefill: NodeName) -> dict[str, str]:
    """Which prefill node feeds a decode node, and where on it the cell's pd_router listens."""
    return {FED_BY: str(prefill), ROUTER_PORT: str(router_port(fleet, decode))}


def fed_by(settings: Mapping[str, str]) -> NodeName | None:
    """The prefill node that fed a decode node when these settings were noted; None when none did."""
    return NodeName.parse(settings[FED_BY]) if FED_BY in settings else None


def had_gate(settings: Mapping[str, str]) -> bool:
    """Whether a prefill node had a KV gate when these settings were noted."""
    return settings.get(GATE, OFF) != OFF


def _gate(fleet: Fleet, node: NodeName) -> dict[str, str]:
    """Of a prefill node; the gate's own version with it."""
    if fleet.role_of(node.pool) is not Role.PREFILL:
        return {}
    return {GATE: program().digest if fleet.pools[node.pool].gate else OFF}


def _hardware(fleet: Fleet, node: NodeName) -> dict[str, str]:
    pool = fleet.pools[node.pool]
    return {
        "role": str(fleet.role_of(node.pool)),
        "gpu": str(pool.gpu),
        "provider": fleet.provider_of(node.pool).use,
        "region": pool.region or "any",
    }


def _model(fleet: Fleet) -> dict[str, str]:
    model = fleet.model
    return {
        "model.id": model.id,
        "model.revision": model.revision,
        "model.profile": model.profile,
        "model.served_name": model.served_name,
    }


def _versions(fleet: Fleet, role: Role) -> dict[str, str]:
    versions = fleet.versions
    own = {"versions.transformers": versions.transformers} if role is Role.DECODE else {"versions.vllm": versions.vllm}
    return {
        "versions.tilert": versions.tilert,
        "versions.nixl": versions.nixl,
        **own,
        "image.base": role_image(fleet, role).base,
        "image.tag": role_image(fleet, role).tag,
    }


def _engine(fleet: Fleet, role: Role, engine: Engine) -> dict[str, str]:
    own = (
        {"engine.decode_poll_ms": str(engine.decode_poll_ms)}
        if role is Role.DECODE
        else {
            "engine.tensor_parallel": str(engine.tensor_parallel),
            "engine.gpu_memory_utilization": str(engine.gpu_memory_utilization),
        }
    )
    return {
        "engine.max_seq_len": str(max_seq_len(fleet, engine)),
        "engine.kv_cache_dtype": engine.kv_cache_dtype,
        "engine.transport": engine.transport,
        "engine.senders": str(senders(engine)),
        "engine.mtp": "on" if engine.mtp else "off",
        **own,
        "engine.extra_args": " ".join(engine.extra_args),
        **{f"engine.env.{name}": value for name, value in sorted(engine.env.items())},
    }
