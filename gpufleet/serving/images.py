"""The container image of each role: a published base and the packages that it lacks. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from gpufleet.domain.nodes import Role
from gpufleet.spec.model import Fleet, Versions

VLLM_ROUTER_VERSION = "0.1.17"
"""The release that was run in front of vLLM prefill and decode over NIXL."""

_TILERT_PATH = "/opt/conda/envs/tilert/bin"
"""Where TileRT's image keeps its Python; its entrypoint activates it, a build step does not pass through there."""

_SERVER_PACKAGES = ("fastapi", "uvicorn", "httpx", "requests", "pydantic")
"""tilert's extra ``pd``: its servers import them, its image has none of them. No ABI, so no pin."""


@dataclass(frozen=True)
class RoleImage:
    """What a node's containers start from."""

    base: str
    """The published image, pulled first."""
    tag: str
    """``gpufleet/decode:1f2e3d4c5b6a``: changes when and only when the Dockerfile does."""
    dockerfile: str


def role_image(fleet: Fleet, role: Role) -> RoleImage:
    """The image of every container on a node of this role (a prefill node's pd_router included)."""
    base = fleet.versions.tilert_image if role is Role.DECODE else fleet.versions.vllm_image
    dockerfile = "\n".join([f"FROM {base}", *_layers(fleet.versions, role), ""])
    digest = hashlib.sha256(dockerfile.encode()).hexdigest()[:12]
    return RoleImage(base, f"gpufleet/{role}:{digest}", dockerfile)


def _layers(versions: Versions, role: Role) -> list[str]:
    """Build steps, with the reason for each package.

    - ``tilert``: the same version on every role, since it versions the control protocol and the KV layout; without
      dependencies, since its torch and transformers bounds would replace those that the base image was built with.
    - ``nixl``: the transport on every role; both ends of a hand-over must agree.
    - ``transformers``: TileRT's image has 4.46.3, and GLM-5.1's tokenizer class (TokenizersBackend) came with 5.
    - ``vllm-router``: the proxy of the native path; runs on the first native node.
    """
    tilert = f"tilert=={versions.tilert}"
    nixl = f"nixl=={versions.nixl}"
    if role is Role.DECODE:
        packages = [nixl, f"transformers=={versions.transformers}", *_SERVER_PACKAGES]
        path = [f"ENV PATH={_TILERT_PATH}:$PATH"]
    else:
        packages = [nixl, *_SERVER_PACKAGES]
        path = []
    if role is Role.NATIVE:
        packages.append(f"vllm-router=={VLLM_ROUTER_VERSION}")
    return [
        *path,
        f"RUN pip install --no-cache-dir --no-deps {tilert}",
        f"RUN pip install --no-cache-dir {' '.join(packages)}",
    ]
