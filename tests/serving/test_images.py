"""Images per role."""

from __future__ import annotations

import pytest

from gpufleet.domain.nodes import Role
from gpufleet.serving.images import role_image
from tests.serving.fleets import fleet


def test_decode_adds_to_tilerts_image_all_that_it_lacks() -> None:
    assert role_image(fleet(), Role.DECODE).dockerfile == (
        "FROM ghcr.io/tile-ai/tilert:cu132-latest\n"
        "ENV PATH=/opt/conda/envs/tilert/bin:$PATH\n"
        "RUN pip install --no-cache-dir --no-deps tilert==0.1.6.post3\n"
        "RUN pip install --no-cache-dir nixl==1.3.1 transformers==5.4.0 fastapi uvicorn httpx requests pydantic\n"
    )


def test_prefill_and_native_start_from_vllm() -> None:
    prefill, native = role_image(fleet(), Role.PREFILL), role_image(fleet(), Role.NATIVE)
    assert prefill.base == native.base == "vllm/vllm-openai:v0.26.0"
    assert "transformers" not in prefill.dockerfile
    assert "vllm-router==0.1.17" in native.dockerfile
    assert "vllm-router" not in prefill.dockerfile


@pytest.mark.parametrize("role", list(Role))
def test_every_role_has_the_same_tilert_and_nixl(role: Role) -> None:
    text = role_image(fleet({"versions": {"tilert": "0.1.7", "nixl": "1.4.0"}}), role).dockerfile
    assert "--no-deps tilert==0.1.7\n" in text
    assert "nixl==1.4.0" in text


def test_the_tag_changes_with_the_content_only() -> None:
    tag = role_image(fleet(), Role.DECODE).tag
    assert tag == role_image(fleet({"name": "other"}), Role.DECODE).tag
    assert tag != role_image(fleet({"versions": {"nixl": "1.4.0"}}), Role.DECODE).tag
    assert tag.startswith("gpufleet/decode:")
