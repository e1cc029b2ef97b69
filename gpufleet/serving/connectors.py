"""vLLM's ``--kv-transfer-config`` per role. Pure."""

from __future__ import annotations

import json
from typing import Any

from gpufleet.domain.nodes import NodeName
from gpufleet.serving.agree import engine_of, hands_over_to, max_seq_len
from gpufleet.serving.topology import TILERT_CTRL_PORT
from gpufleet.spec.model import Fleet

KV_LEASE_SECONDS = 300
"""How long prefill keeps blocks that native decode has not fetched. vLLM's 30 s are shorter than a queue can be, and
blocks that are freed and reused meanwhile give wrong answers with status 200."""


def prefill_connector(fleet: Fleet, node: NodeName) -> str | None:
    """The prefill side: one connector per kind of decode pool; None when there is none to feed."""
    tilert, native = hands_over_to(fleet)
    connectors = [
        *([_nixl("kv_producer")] if native else []),
        *([_tilert(fleet, node)] if tilert else []),
    ]
    if not connectors:
        return None
    return _json(connectors[0] if len(connectors) == 1 else _multi(connectors))


def native_connector() -> str:
    """The native decode side: a failed KV load fails the request instead of answering from nothing."""
    return _json({**_nixl("kv_consumer"), "kv_load_failure_policy": "fail"})


def _multi(connectors: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"connectors": connectors},
    }


def _nixl(role: str) -> dict[str, Any]:
    return {
        "kv_connector": "NixlConnector",
        "kv_role": role,
        "kv_connector_extra_config": {"kv_lease_duration": KV_LEASE_SECONDS},
    }


def _tilert(fleet: Fleet, node: NodeName) -> dict[str, Any]:
    """``tilert_host`` would only be a default: each request names its decode node."""
    engine = engine_of(fleet, node)
    return {
        "kv_connector": "TileRTConnector",
        "kv_connector_module_path": "tilert.pd_vllm.prefill_connector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {
            "tilert_ctrl_port": TILERT_CTRL_PORT,
            "tilert_model": fleet.model.profile,
            "tilert_max_seq_len": max_seq_len(fleet, engine),
            "tilert_transport": engine.transport,
        },
    }


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))
