"""Images of the twin's docker: what registries have, and what this node has pulled or built."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from pathlib import Path

from gpufleet.twin import layout, packages
from gpufleet.twin.docker.errors import DockerError, daemon

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpufleet.twin.nodefile import Node

SYSTEM_PATH = layout.HOST_PATH
CONDA = "/opt/conda/envs/tilert/bin"
ENTRYPOINT = "/opt/tilert/entrypoint.sh"
_SERVING = {
    "pip": "25.3", "torch": "2.11.0+cu130", "numpy": "2.2.6", "safetensors": "0.6.2", "tokenizers": "0.22.1",
    "huggingface-hub": "1.3.0", "requests": "2.32.5", "jinja2": "3.1.6",
}  # fmt: skip
REGISTRY: dict[str, dict[str, Any]] = {
    "vllm/vllm-openai": {
        "tags": ("v0.26.0", "v0.25.0", "v0.24.0", "latest"),
        "gigabytes": 12,
        "entrypoint": ["vllm", "serve"],
        "packages": _SERVING
        | {"vllm": "0.26.0", "transformers": "5.5.0", "fastapi": "0.120.0", "uvicorn": "0.38.0", "httpx": "0.28.1"}
        | {"pydantic": "2.12.3", "uv": "0.9.5"},
    },
    "ghcr.io/tile-ai/tilert": {
        "tags": ("cu132-latest", "0.1.5", "0.1.6", "v0.1.0"),
        "gigabytes": 16,
        "entrypoint": [ENTRYPOINT],
        "prefix": CONDA,
        "packages": _SERVING | {"transformers": "4.46.3", "tokenizers": "0.20.3"},
    },
    "ubuntu": {"tags": ("22.04", "24.04", "latest"), "gigabytes": 0.08, "packages": {}},
    "debian": {"tags": ("12", "bookworm", "latest"), "gigabytes": 0.12, "packages": {}},
    "busybox": {"tags": ("latest",), "gigabytes": 0.005, "packages": {}},
    "hello-world": {"tags": ("latest",), "gigabytes": 0.001, "cmd": ["echo", "Hello from Docker!"], "packages": {}},
    "python": {"tags": ("3.11", "3.12", "3.12-slim", "latest"), "gigabytes": 0.4, "packages": {"pip": "25.3"}},
    "nvidia/cuda": {"tags": ("13.0.1-base-ubuntu24.04", "12.8.1-base-ubuntu24.04"), "gigabytes": 0.3, "packages": {}},
}
LAYERS = 6


def digest_of(text: str) -> str:
    """A stable sha256 of a name."""
    import hashlib  # most commands name no digest

    return hashlib.sha256(text.encode()).hexdigest()


def split_reference(reference: str) -> tuple[str, str, str]:
    """``name``, ``tag`` and ``sha256:...`` of a reference; tag ``latest`` when it names neither.

    Raises:
        DockerError: not a reference.
    """
    name, _, digest = reference.partition("@")
    slash = name.rfind("/")
    colon = name.find(":", slash + 1)
    name, tag = (name[:colon], name[colon + 1 :]) if colon >= 0 else (name, "" if digest else "latest")
    for prefix in ("docker.io/library/", "docker.io/"):
        name = name.removeprefix(prefix)
    if not name or name != name.lower() or " " in reference or (colon >= 0 and not tag):
        raise DockerError(
            f"invalid reference format{': repository name must be lowercase' if name != name.lower() else ''}"
        )
    return name, tag, digest


class Images:
    """The image store of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._folder = node.root / "docker" / "images"

    def all(self) -> list[dict[str, Any]]:
        """Every image, newest first."""
        found = [json.loads(path.read_text()) for path in self._folder.glob("*/image.json")]
        return sorted(found, key=lambda image: -image["created"])

    def layer(self, image: dict[str, Any]) -> Path:
        """Where the image's packages are."""
        return self._folder / str(image["id"])

    def find(self, reference: str) -> dict[str, Any] | None:
        """The image that a name, digest or id (or its beginning) means."""
        known = self.all()
        short = reference.removeprefix("sha256:")
        by_id = [image for image in known if len(short) >= 4 and image["id"].startswith(short)]
        if by_id:
            return by_id[0]
        name, tag, digest = split_reference(reference)
        for image in known:
            if digest and f"{name}@{digest}" in image["digests"]:
                return image
            if not digest and f"{name}:{tag}" in image["tags"]:
                return image
        return None

    def get(self, reference: str) -> dict[str, Any]:
        """Like `find`.

        Raises:
            DockerError: no such image.
        """
        image = self.find(reference)
        if image is None:
            name, tag, digest = split_reference(reference)
            raise daemon(f"No such image: {f'{name}@{digest}' if digest else f'{name}:{tag}'}")
        return image

    def pull(self, reference: str, *, quiet: bool = False) -> dict[str, Any]:
        """Bring an image from its registry, layer by layer; layers of a killed pull are kept.

        Raises:
            DockerError: the registry has no such image, or cannot be reached.
        """
        name, tag, digest = split_reference(reference)
        entry = REGISTRY.get(name)
        if self._node.fault("registry-down") is not None:
            raise daemon(
                f'Get "https://{name.partition("/")[0]}/v2/": net/http: request canceled (Client.Timeout exceeded)'
            )
        if entry is None:
            denied = "denied: requested access to the resource is denied"
            hint = f"repository does not exist or may require 'docker login': {denied}"
            raise daemon(f"pull access denied for {name}, {hint}")
        if digest:
            tag = next((known for known in entry["tags"] if f"sha256:{digest_of(f'{name}:{known}')}" == digest), "")
        if tag not in entry["tags"]:
            raise daemon(f"manifest for {reference} not found: manifest unknown: manifest unknown")
        out = io.StringIO() if quiet else sys.stdout
        print(f"{tag}: Pulling from {name if '/' in name else f'library/{name}'}", file=out, flush=True)
        fresh = self._pull_layers(name, tag, entry, out)
        image = self._register(name, tag, entry)
        print(f"Digest: {image['digests'][0].partition('@')[2]}", file=out)
        print(f"Status: {'Downloaded newer image' if fresh else 'Image is up to date'} for {name}:{tag}", file=out)
        return image

    def _pull_layers(self, name: str, tag: str, entry: dict[str, Any], out: Any) -> bool:
        fresh = False
        for index in range(LAYERS):
            layer = digest_of(f"{name}:{tag}/{index}")[:12]
            mark = self._node.root / "docker" / "layers" / layer
            if mark.exists():
                print(f"{layer}: Already exists", file=out)
                continue
            print(f"{layer}: Pulling fs layer", file=out, flush=True)
            self._node.pause(entry["gigabytes"] / LAYERS * 8 / self._node.pace["pull_gbps"])
            mark.touch()
            print(f"{layer}: Pull complete", file=out, flush=True)
            fresh = True
        return fresh

    def _register(self, name: str, tag: str, entry: dict[str, Any]) -> dict[str, Any]:
        full = f"{name}:{tag}"
        contents = dict(entry["packages"])
        if "vllm" in contents and tag.startswith("v"):
            contents["vllm"] = tag.removeprefix("v")
        prefix = entry.get("prefix", "/usr/local/bin")
        conda = "/opt/conda/bin:" if prefix == CONDA else ""
        image = {
            "id": digest_of(f"image {full}"),
            "tags": [full],
            "digests": [f"{name}@sha256:{digest_of(full)}"],
            "size": int(entry["gigabytes"] * 2.4e9),
            "env": {"PATH": f"{conda}{SYSTEM_PATH}"},
            "entrypoint": entry.get("entrypoint", []),
            "cmd": entry.get("cmd", ["/bin/bash"] if "entrypoint" not in entry else []),
            "workdir": "",
            "user": "",
            "labels": {},
            "prefix": prefix,
            "created": time.time(),
        }
        return self.add(image, contents)

    def add(self, image: dict[str, Any], contents: dict[str, str]) -> dict[str, Any]:
        """Store an image; takes its tags away from any other."""
        known = self._folder / str(image["id"]) / "image.json"
        if known.exists():
            image = image | {"tags": sorted({*json.loads(known.read_text())["tags"], *image["tags"]})}
        for tag in image["tags"]:
            self.untag(tag, keep=str(image["id"]))
        layer = self.layer(image)
        layer.mkdir(exist_ok=True)
        packages.install(layer, contents)
        self._write(image)
        return image

    def tag(self, image: dict[str, Any], reference: str) -> None:
        """Give an image another name."""
        name, tag, _ = split_reference(reference)
        self.untag(f"{name}:{tag}", keep=str(image["id"]))
        self._write(image | {"tags": sorted({*image["tags"], f"{name}:{tag}"})})

    def untag(self, tag: str, *, keep: str = "") -> None:
        """Take a name away from the image that has it."""
        for image in self.all():
            if tag in image["tags"] and image["id"] != keep:
                self._write(image | {"tags": [other for other in image["tags"] if other != tag]})

    def remove(self, image: dict[str, Any]) -> None:
        """Forget an image."""
        import shutil

        shutil.rmtree(self.layer(image))

    def _write(self, image: dict[str, Any]) -> None:
        fresh = self.layer(image) / f".image.{os.getpid()}"
        fresh.write_text(json.dumps(image))
        fresh.replace(self.layer(image) / "image.json")


def program_path(path: str, prefix: str, layer: Path, root: Path) -> str:
    """A container's PATH as directories of this machine: the image's own Python, then the few system tools."""
    found: list[str] = []
    for entry in path.split(":"):
        if entry == prefix:
            found.append(str(layer / "bin"))
        if entry in SYSTEM_PATH.split(":"):
            found.append(str(root / "docker" / "bin"))
        elif entry.startswith(str(root)):
            found.append(entry)
    return ":".join(dict.fromkeys(found))
