"""The weights a node holds, tiny but well-formed: safetensors files with the real tensor names.

Each stands for a file of tens of gigabytes: `used_bytes` says what they would take up.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpufleet.twin.nodefile import Node

CHECKPOINT_BYTES = {
    "zai-org/GLM-5.1-FP8": 756e9,
    "zai-org/GLM-5-FP8": 756e9,
    "zai-org/GLM-5.1": 1508e9,
    "deepseek-ai/DeepSeek-V3.2": 689e9,
}
"""Repositories that can be downloaded, with their size."""
CONVERTED_BYTES = 715e9
CONVERTED_FILES = 17
"""One for the embedding and two per device; the real converter writes 153."""
LAYERS = 79
"""GLM-5: 78 and the MTP layer."""
INDEX = "model.safetensors.index.json"
DATA = 4
"""Bytes per tensor: one float32."""


def tensor_names(*, fp8: bool = True) -> list[str]:
    """Some of the checkpoint's tensors; those that the converter cannot do without among them."""
    per_layer = ["input_layernorm.weight", "self_attn.o_proj.weight", "post_attention_layernorm.weight"]
    if fp8:
        per_layer.append("self_attn.o_proj.weight_scale_inv")
    names = [f"model.layers.{layer}.{name}" for layer in range(LAYERS) for name in per_layer]
    mtp = [f"model.layers.{LAYERS - 1}.{name}.weight" for name in ("enorm", "hnorm", "eh_proj")]
    return ["model.embed_tokens.weight", *names, *mtp, "model.norm.weight", "lm_head.weight"]


def write_safetensors(path: Path, names: Iterable[str]) -> int:
    """Write a file with one number per tensor, whole or not at all; returns the bytes of tensor data."""
    listed = list(names)
    offsets = {
        name: {"dtype": "F32", "shape": [1], "data_offsets": [i * DATA, (i + 1) * DATA]}
        for i, name in enumerate(listed)
    }
    header = json.dumps({"__metadata__": {"format": "pt"}} | offsets, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    fresh = path.with_name(f".{path.name}.part")
    fresh.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * (DATA * len(listed)))
    fresh.replace(path)
    return DATA * len(listed)


def read_names(path: Path) -> list[str]:
    """The tensors in a safetensors file.

    Raises:
        ValueError: the file is cut or not one.
    """
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else len(data)
    if 8 + length > len(data):
        raise ValueError("Error while deserializing header: InvalidHeaderLength")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    if 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0) != len(data):
        raise ValueError("Error while deserializing header: MetadataIncompleteBuffer")
    return list(header)


def shards(node: Node) -> int:
    """How many files the downloaded checkpoint has."""
    return int(node.pace["weights_files"])


def split(names: list[str], parts: int) -> Iterator[list[str]]:
    """Cut a list into ``parts`` runs of nearly equal length."""
    for part in range(parts):
        yield names[part * len(names) // parts : (part + 1) * len(names) // parts]


def used_bytes(node: Node) -> int:
    """Disk space that the weights on this node would take up."""
    total = 20e9  # the system itself
    for path in (node.root / "work").rglob("*.safetensors"):
        converted = path.name.startswith("model.safetensors-")
        total += CONVERTED_BYTES / CONVERTED_FILES if converted else 756e9 / shards(node)
    return int(total)


def free_bytes(node: Node) -> int:
    """What is left of the disk; never below zero."""
    return max(0, node.disk_bytes - used_bytes(node))
