"""What the catalog says about hardware and models."""

from __future__ import annotations

import pytest

from gpufleet.catalog.facts import capability, gpus, model, models, refused_models
from gpufleet.catalog.sizing import check_shape, needs, shape_warning, shapes_that_fit
from gpufleet.catalog.timing import phase_seconds
from gpufleet.domain.market import GpuShape
from gpufleet.domain.nodes import Role

GLM = "zai-org/GLM-5.1-FP8"


@pytest.mark.parametrize(("name", "vram"), [("H100", 80), ("H200", 141), ("B200", 180), ("B300", 288), ("A100", 80)])
def test_memory_of_the_usual_gpus(name: str, vram: int) -> None:
    assert gpus()[name].vram_gb == vram


def test_both_models_of_the_profile_are_known() -> None:
    assert set(models()) == {"zai-org/GLM-5.1-FP8", "zai-org/GLM-5-FP8"}
    assert {m.profile for m in models().values()} == {"glm5"}
    assert model("somebody/else").id == GLM, "sizes of an unknown model are those of the first known one"
    assert not set(models()) & set(refused_models())


def test_figures_that_other_figures_confirm() -> None:
    facts = model(GLM)
    assert facts.kv_bytes_per_token == {"fp8": 62_252, "bf16": 101_436}
    assert facts.kv_bytes_per_token["fp8"] == facts.layers * 788
    assert facts.kv_bytes_per_token["bf16"] == facts.layers * 1284
    assert needs(GLM, Role.DECODE).disk_gb > facts.checkpoint_gb + facts.converted_gb
    assert needs(GLM, Role.PREFILL).disk_gb > facts.checkpoint_gb
    assert needs(GLM, Role.DECODE).converting_ram_gb > facts.converted_gb


def test_only_decode_nodes_convert() -> None:
    assert needs(GLM, Role.DECODE).converting_ram_gb == 900
    for role in (Role.PREFILL, Role.NATIVE):
        assert needs(GLM, role).converting_ram_gb == needs(GLM, role).ram_gb == 256
        assert needs(GLM, role).vram_gb == 893


@pytest.mark.parametrize(
    ("role", "fits"),
    [
        (Role.PREFILL, ["H200:8", "B200:8", "B300:8"]),
        (Role.NATIVE, ["H200:8", "B200:8", "B300:8"]),
        (Role.DECODE, ["B200:8"]),
    ],
)
def test_shapes_that_fit_a_role(role: Role, fits: list[str]) -> None:
    assert [str(shape) for shape in shapes_that_fit(GLM, role)] == fits


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("name", sorted(gpus()))
def test_every_gpu_gets_an_answer_for_every_role(name: str, role: Role) -> None:
    shape = GpuShape(name, 8)
    reason = check_shape(GLM, role, shape, 8)
    assert reason is None or reason.isprintable()
    assert (reason is None) == (shape in shapes_that_fit(GLM, role) or shape_warning(GLM, role, shape) is not None)


def test_an_unknown_gpu_is_an_answer_too() -> None:
    assert check_shape(GLM, Role.NATIVE, GpuShape("X1", 8), 8) == "'X1' is not a GPU model that gpufleet knows"


@pytest.mark.parametrize(("text", "value"), [("9.0", (9, 0)), ("10.3", (10, 3)), ("12", (12, 0))])
def test_compute_capabilities_compare_as_numbers(text: str, value: tuple[int, int]) -> None:
    assert capability(text) == value


def test_time_to_ready_is_told_phase_by_phase_in_order() -> None:
    assert list(phase_seconds(Role.DECODE, first_decode=True)) == [
        "check", "image", "weights", "convert", "serve", "cell",
    ]  # fmt: skip
    assert list(phase_seconds(Role.PREFILL, first_decode=False)) == ["check", "image", "weights", "serve", "cell"]
    assert list(phase_seconds(Role.NATIVE, first_decode=False)) == ["check", "image", "weights", "serve"]


def test_later_decode_nodes_wait_for_the_conversion_and_copy_it() -> None:
    first = phase_seconds(Role.DECODE, first_decode=True)
    later = phase_seconds(Role.DECODE, first_decode=False)
    assert "convert" not in later
    assert sum(later.values()) > sum(first.values()) > 136 * 60
    assert sum(phase_seconds(Role.NATIVE, first_decode=False).values()) < 3600
