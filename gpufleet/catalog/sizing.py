"""Which hardware a role of a model needs. Pure; figures and sources are in the YAML files here."""

from __future__ import annotations

from dataclasses import dataclass

from gpufleet.catalog.facts import Gpu, ServedModel, gpus, model, read_table
from gpufleet.domain.market import GpuShape
from gpufleet.domain.nodes import Role

_GPUS_PER_NODE = 8


@dataclass(frozen=True)
class Needs:
    """What one node of a role needs. Decimal GB."""

    vram_gb: int
    disk_gb: int
    ram_gb: int
    converting_ram_gb: int
    """While it converts the weights; equal to ``ram_gb`` for roles that never do."""


def needs(model_id: str, role: Role) -> Needs:
    """What a node of this role needs to serve this model."""
    node = read_table("models.yaml")["nodes"][role.value]
    return Needs(
        vram_gb=model(model_id).vram_gb,
        disk_gb=node["disk_gb"],
        ram_gb=node["ram_gb"],
        converting_ram_gb=node.get("converting_ram_gb", node["ram_gb"]),
    )


def check_shape(model_id: str, role: Role, shape: GpuShape, tensor_parallel: int = _GPUS_PER_NODE) -> str | None:
    """Why this shape cannot serve this role, in one sentence; None when it can."""
    gpu = gpus().get(shape.model)
    if gpu is None:
        return f"'{shape.model}' is not a GPU model that gpufleet knows"
    if gpu.vendor != "nvidia":
        return f"{shape.model} is an AMD GPU; {_short(model_id)} runs on NVIDIA GPUs only"
    facts = model(model_id)
    if role is Role.DECODE:
        return _check_tilert(facts, gpu, shape)
    return _check_vllm(facts, role, gpu, shape, tensor_parallel)


def shape_warning(model_id: str, role: Role, shape: GpuShape) -> str | None:
    """What speaks against a shape that `check_shape` accepts; None when nothing does."""
    if role is Role.DECODE and shape.model in model(model_id).tilert_reported:
        return f"TileRT on {shape} is reported to work, but TileRT does not support it"
    return None


def shapes_that_fit(model_id: str, role: Role) -> list[GpuShape]:
    """The shapes of eight GPUs that serve this role with full support, smallest memory first."""
    shapes = [GpuShape(gpu.name, _GPUS_PER_NODE) for gpu in sorted(gpus().values(), key=lambda gpu: gpu.vram_gb)]
    return [s for s in shapes if not check_shape(model_id, role, s) and not shape_warning(model_id, role, s)]


def _check_tilert(facts: ServedModel, gpu: Gpu, shape: GpuShape) -> str | None:
    wanted = GpuShape(facts.tilert_supported[0], facts.tilert_gpus)
    if gpu.name not in facts.tilert_supported + facts.tilert_reported:
        return (
            f"TileRT decode needs {wanted}: its kernels are built for data-centre Blackwell (sm_100f) "
            f"and do not run on {gpu.family.replace('-', ' ').title()} ({gpu.name})"
        )
    if shape.count != facts.tilert_gpus:
        return f"TileRT decode runs on exactly {facts.tilert_gpus} GPUs of one node, and {shape} has {shape.count}"
    return None


def _check_vllm(facts: ServedModel, role: Role, gpu: Gpu, shape: GpuShape, tensor_parallel: int) -> str | None:
    short = _short(facts.id)
    if gpu.compute_capability is None or gpu.compute_capability < facts.min_compute_capability:
        return (
            f"{short} has sparse attention kernels for compute capability {_dotted(facts.min_compute_capability)} "
            f"and newer; {gpu.name} has {_dotted(gpu.compute_capability or (0, 0))}"
        )
    if tensor_parallel > shape.count:
        return f"tensor_parallel {tensor_parallel} needs as many GPUs on one node, and {shape} has {shape.count}"
    used = min(shape.count, tensor_parallel)
    if used * gpu.vram_gb < facts.vram_gb:
        return (
            f"{short} needs about {facts.vram_gb} GB of VRAM per {role} node, "
            f"and {used} x {gpu.name} has {used * gpu.vram_gb} GB"
        )
    return None


def _short(model_id: str) -> str:
    return model_id.rpartition("/")[2]


def _dotted(value: tuple[int, int]) -> str:
    return f"{value[0]}.{value[1]}"
