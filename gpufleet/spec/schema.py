"""The JSON Schema of the fleet file, for editors."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from gpufleet.spec.model import Fleet
from gpufleet.spec.values import format_duration

SCHEMA_ID = "urn:gpufleet:schema:fleet"


def json_schema() -> dict[str, Any]:
    """Titles, descriptions, defaults and patterns of every key, as JSON Schema 2020-12."""
    schema = Fleet.model_json_schema(by_alias=True, mode="validation", schema_generator=_Generator)
    head = {"$schema": GenerateJsonSchema.schema_dialect, "$id": SCHEMA_ID, "title": "gpufleet fleet file"}
    return {**head, **{key: _tidy(value) for key, value in schema.items() if key != "title"}}


class _Generator(GenerateJsonSchema):
    """Writes durations as the file does."""

    def encode_default(self, dft: Any) -> Any:
        return format_duration(dft) if isinstance(dft, timedelta) else super().encode_default(dft)


def _tidy(value: Any) -> Any:
    """Without defaults that only say "left out": null, and whole sections."""
    if isinstance(value, list):
        return [_tidy(item) for item in value]
    if not isinstance(value, dict):
        return value
    noise = "default" in value and (value["default"] is None or isinstance(value["default"], dict))
    return {key: _tidy(item) for key, item in value.items() if not (noise and key == "default")}
