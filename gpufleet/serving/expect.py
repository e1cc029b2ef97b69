"""What a decode node must say before any traffic is sent to it. Pure.

TileRT compares these only when the first request arrives, and a difference then shows as a hang of 120 seconds.
"""

from __future__ import annotations

from gpufleet.domain.nodes import NodeName
from gpufleet.serving.agree import engine_of, layout_version, max_seq_len, senders
from gpufleet.serving.topology import TILERT_CTRL_PORT
from gpufleet.spec.feeding import feeding
from gpufleet.spec.model import Engine, Fleet

PROTOCOL_VERSION = 2
"""TileRT's control protocol in 0.1.6 (tilert.pd_vllm.wire)."""


def hello_expectations(fleet: Fleet, decode: NodeName) -> dict[str, str]:
    """Inputs of the ``hello`` playbook, but for the peer's address: what the prefill node of this cell will demand."""
    engine = _prefill_engine(fleet, decode)
    return {
        "GF_PEER_PORT": str(TILERT_CTRL_PORT),
        "GF_EXPECT_PROTOCOL": str(PROTOCOL_VERSION),
        "GF_EXPECT_LAYOUT": str(layout_version(engine)),
        "GF_EXPECT_TRANSPORT": engine.transport,
        "GF_EXPECT_SENDERS": str(senders(engine)),
        "GF_EXPECT_MAX_SEQ_LEN": str(max_seq_len(fleet, engine)),
    }


def _prefill_engine(fleet: Fleet, decode: NodeName) -> Engine:
    """Settings of the prefill node that feeds this decode node; its own when there is none."""
    return engine_of(fleet, feeding(fleet).get(decode, decode))
