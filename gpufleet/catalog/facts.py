"""What is known about GPUs and models, read once from the YAML files beside this module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import yaml

Vendor = Literal["nvidia", "amd"]
Capability = tuple[int, int]


@dataclass(frozen=True)
class Gpu:
    """One GPU model."""

    name: str
    vendor: Vendor
    family: str
    vram_gb: int
    """Of one GPU, decimal GB."""
    nvlink: bool
    compute_capability: Capability | None = None
    """None for AMD."""
    memory_tb_s: Decimal | None = None
    """Memory bandwidth of one GPU, decimal TB/s."""


@dataclass(frozen=True)
class ServedModel:
    """One model that the service can run. Sizes in decimal GB; each figure's source is in `models.yaml`."""

    id: str
    profile: str
    vram_gb: int
    """Per prefill or native instance."""
    checkpoint_gb: int
    converted_gb: int
    converted_files: int
    layers: int
    max_seq_len: int
    """Tokens of prompt and answer together."""
    min_compute_capability: Capability
    kv_bytes_per_token: Mapping[str, int]
    """By KV cache dtype."""
    min_vllm: str
    min_transformers: str
    tilert_gpus: int
    """TileRT runs on exactly this many GPUs."""
    tilert_supported: tuple[str, ...]
    tilert_reported: tuple[str, ...]
    """Reported to work by users, not supported by TileRT."""


def capability(text: str) -> Capability:
    """``10.3`` -> ``(10, 3)``."""
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)


@cache
def gpus() -> Mapping[str, Gpu]:
    """Every known GPU model by its name in the fleet file."""
    return {name: _gpu(name, row) for name, row in read_table("gpus.yaml").items()}


@cache
def models() -> Mapping[str, ServedModel]:
    """Every known model by its Hugging Face repository."""
    return {name: _model(name, row) for name, row in read_table("models.yaml")["models"].items()}


def model(model_id: str) -> ServedModel:
    """The facts of a model; one that the catalog lacks is taken to be as large as the first it knows."""
    known = models()
    return known.get(model_id) or next(iter(known.values()))


def refused_models() -> Mapping[str, str]:
    """Models that cannot work, each with the reason."""
    refused: Mapping[str, str] = read_table("models.yaml")["refused"]
    return refused


@cache
def read_table(name: str) -> Mapping[str, Any]:
    """One of the YAML files of this package."""
    table: Mapping[str, Any] = yaml.safe_load(files(__package__).joinpath(name).read_text(encoding="utf-8"))
    return table


def _gpu(name: str, row: Mapping[str, Any]) -> Gpu:
    given = row.get("compute_capability")
    speed = Decimal(str(row["memory_tb_s"])) if "memory_tb_s" in row else None
    known = {"name": name, "compute_capability": capability(given) if given else None, "memory_tb_s": speed}
    return Gpu(**{**row, **known})


def _model(name: str, row: Mapping[str, Any]) -> ServedModel:
    plain = {key: value for key, value in row.items() if key != "tilert"}
    tilert = row["tilert"]
    return ServedModel(
        **{**plain, "id": name, "min_compute_capability": capability(row["min_compute_capability"])},
        tilert_gpus=tilert["gpus"],
        tilert_supported=tuple(tilert["supported"]),
        tilert_reported=tuple(tilert["reported"]),
    )
