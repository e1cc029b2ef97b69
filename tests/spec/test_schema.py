"""The JSON Schema that editors complete from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpufleet.spec.schema import SCHEMA_ID, json_schema

EXAMPLES = Path(__file__).parents[2] / "examples"


def sections() -> dict[str, Any]:
    schema = json_schema()
    return {"Fleet": schema, **schema["$defs"]}


def test_the_example_schema_is_the_current_one() -> None:
    current = json.dumps(json_schema(), indent=2) + "\n"
    assert (EXAMPLES / "fleet.schema.json").read_text() == current, "run: gpufleet schema > examples/fleet.schema.json"


def test_it_says_what_it_is() -> None:
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == SCHEMA_ID
    assert schema["title"] == "gpufleet fleet file"


def test_every_key_is_described() -> None:
    undescribed = [
        f"{section}.{key}"
        for section, schema in sections().items()
        for key, field in schema.get("properties", {}).items()
        if "description" not in field
    ]
    assert undescribed == []


def test_unknown_keys_are_marked_in_every_section_of_ours() -> None:
    open_sections = {
        name
        for name, schema in sections().items()
        if schema.get("type") == "object" and schema.get("additionalProperties") is not False
    }
    assert open_sections == set()


def test_durations_shapes_and_secrets_have_patterns() -> None:
    found = sections()
    assert "smhd" in found["Router"]["properties"]["queue_timeout"]["pattern"]
    assert found["Router"]["properties"]["queue_timeout"]["default"] == "30m"
    assert found["Pool"]["properties"]["gpu"]["examples"] == ["H200:8", "B200:8"]
    assert found["Channel"]["properties"]["key"]["pattern"].startswith("^(env:")


def test_a_provider_may_be_a_name() -> None:
    assert {"type": "string"} in sections()["ProviderUse"]["anyOf"]
