"""The container image of each role: a published base and the packages that it lacks. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from gpufleet.domain.nodes import Role
from gpufleet.spec.model import Fleet, Versions

VLLM_ROUTER_VERSION = "0.1.17"
"""The release that was run in front of vLLM prefill and decode over NIXL."""

_TILERT_PATH = "/opt/conda/envs/tilert/bin"
"""Where TileRT's image keeps its Python; its entrypoint activates it, a build step or a login does not pass there."""

_SERVER_PACKAGES = ("fastapi", "uvicorn", "httpx", "requests", "pydantic")
"""tilert's extra ``pd``: its servers import them, its image has none of them. No ABI, so no pin."""


@dataclass(frozen=True)
class RoleImage:
    """What a node's programs start from."""

    base: str
    """The published image, pulled first."""
    tag: str
    """``gpufleet/decode:1f2e3d4c5b6a``: changes when and only when the Dockerfile does."""
    dockerfile: str
    alone: tuple[str, ...]
    """Python packages that are added without what they depend on."""
    packages: tuple[str, ...]
    """Python packages that are added with it."""
    python_dir: str
    """Where the image's Python is when that is not on every PATH; else empty."""


def role_image(fleet: Fleet, role: Role) -> RoleImage:
    """The image of everything on a node of this role (a prefill node's pd_router included)."""
    versions = fleet.versions
    base = versions.tilert_image if role is Role.DECODE else versions.vllm_image
    alone, packages = _missing(versions, role)
    python_dir = _TILERT_PATH if role is Role.DECODE else ""
    lines = [
        f"FROM {base}",
        *([f"ENV PATH={python_dir}:$PATH"] if python_dir else []),
        f"RUN pip install --no-cache-dir --no-deps {' '.join(alone)}",
        f"RUN pip install --no-cache-dir {' '.join(packages)}",
    ]
    dockerfile = "\n".join([*lines, ""])
    digest = hashlib.sha256(dockerfile.encode()).hexdigest()[:12]
    return RoleImage(base, f"gpufleet/{role}:{digest}", dockerfile, alone, packages, python_dir)


def _missing(versions: Versions, role: Role) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the base image lacks, without and with dependencies; the reason for each package:

    - ``tilert``: the same version on every role, since it versions the control protocol and the KV layout; without
      dependencies, since its torch and transformers bounds would replace those that the base image was built with.
    - ``nixl``: the transport on every role; both ends of a hand-over must agree.
    - ``transformers``: TileRT's image has 4.46.3, and GLM-5.1's tokenizer class (TokenizersBackend) came with 5.
    - ``vllm-router``: the proxy of the native path; runs on the first native node.
    """
    decode = (f"transformers=={versions.transformers}",) if role is Role.DECODE else ()
    native = (f"vllm-router=={VLLM_ROUTER_VERSION}",) if role is Role.NATIVE else ()
    return (f"tilert=={versions.tilert}",), (f"nixl=={versions.nixl}", *decode, *_SERVER_PACKAGES, *native)
