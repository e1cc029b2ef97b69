"""What is started on a node, as a value. `gpufleet.serving.containers` turns it into a docker command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Launch:
    """One long-running process of the service."""

    name: str
    """Container name, unique on a node: ``gf-<fleet>-decode-0``."""
    image: str
    argv: tuple[str, ...]
    """The command inside the container."""
    health_url: str
    """Answers 200 once the process is ready, as seen from the node itself."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Never holds a secret: it shows in ``docker inspect``."""
    mounts: tuple[str, ...] = ()
    """Host paths, mounted at the same path inside."""
    writes: tuple[str, ...] = ()
    """Host paths that it may write to, mounted at the same path inside."""
    gpus: bool = True
    deadline_seconds: int = 3600
    """From start to ready."""
    keep_entrypoint: bool = False
    """True when the image's own entrypoint must run the command (TileRT's activates its conda environment); False
    replaces it by the command's first word (vLLM's is ``vllm serve``, which would swallow any other program)."""
    devices: tuple[str, ...] = ()
    """Host devices handed into the container; see `gpufleet.serving.containers.with_rdma`."""
