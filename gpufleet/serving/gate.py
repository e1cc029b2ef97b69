"""The KV gate of a prefill node: how it is started, behind which addresses. Pure; what it does is in docs/gate.md."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cache

from gpufleet.catalog.facts import model
from gpufleet.domain.nodes import NodeName, Role
from gpufleet.gate.bundle import bundle
from gpufleet.serving.agree import engine_of
from gpufleet.serving.commands import container_name
from gpufleet.serving.images import role_image
from gpufleet.serving.launch import Launch
from gpufleet.serving.topology import GATE_PORT, VLLM_PREFILL_PORT, Topology
from gpufleet.spec.model import Fleet

GATE_HEALTH = "/gate/health"
GATE_METRICS = "/gate/metrics"
_AHEAD = -1000
"""vLLM's priority of hand-overs; lower is sooner, and what comes without one has 0."""
_PATIENCE_S = 600
"""For a turn, and for a hand-over: a long prompt alone takes a minute, and other cells may be before it."""


@dataclass(frozen=True)
class Program:
    """The gate as one file."""

    content: bytes

    @property
    def digest(self) -> str:
        """Changes with its source, and so does what `plan` compares."""
        return hashlib.sha256(self.content).hexdigest()[:12]

    @property
    def text(self) -> str:
        """As an input of a playbook."""
        return base64.b64encode(self.content).decode()


@cache
def program() -> Program:
    """The gate of this gpufleet."""
    return Program(bundle())


def program_path(folder: str) -> str:
    """Where the program lies on a node."""
    return f"{folder}/gate-{program().digest}.pyz"


def gate_name(fleet: Fleet) -> str:
    """What the gate is called on its node."""
    return container_name(fleet, "gate")


def gate_launch(fleet: Fleet, topology: Topology, node: NodeName, folder: str) -> Launch:
    """The gate of a prefill node, run by the Python of the node's own image.

    Its relays listen on loopback, the gate's default: vLLM's ranks are on the same node, and share its network.
    """
    address = topology.addresses[node]
    token_bytes = model(fleet.model.id).kv_bytes_per_token[engine_of(fleet, node).kv_cache_dtype]
    argv = (
        *("python3", program_path(folder)),
        *("--listen", f"{address}:{GATE_PORT}", "--upstream", f"http://{address}:{VLLM_PREFILL_PORT}"),
        *("--state", f"{folder}/{fleet.name}.busy"),
        *("--priority", str(_AHEAD), "--token-bytes", str(token_bytes)),
        *("--deadline-queue", str(_PATIENCE_S), "--deadline-handover", str(_PATIENCE_S)),
    )
    return Launch(
        name=gate_name(fleet),
        image=role_image(fleet, Role.PREFILL).tag,
        argv=argv,
        health_url=f"http://{address}:{GATE_PORT}{GATE_HEALTH}",
        env={"CUDA_VISIBLE_DEVICES": ""},
        writes=(folder,),
        gpus=False,
        deadline_seconds=300,
    )
