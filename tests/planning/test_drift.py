"""What `plan` shows against the record."""

from __future__ import annotations

from gpufleet.domain.nodes import NodeName
from gpufleet.planning.drift import drift
from gpufleet.planning.model import FieldChange

DECODE = NodeName("decode", 0)
LOCK = {
    "nodes": {
        "decode/0": {"settings": {"model": "glm", "tp": 8}, "fingerprint": {"driver": "595", "gpus": "8"}},
    }
}
SETTINGS = {DECODE: {"model": "glm", "tp": "8"}}


def test_an_unchanged_fleet_has_no_drift() -> None:
    assert drift(LOCK, SETTINGS, {DECODE: {"driver": "595", "gpus": "8"}}) == ()


def test_a_fleet_without_a_record_has_no_drift() -> None:
    assert drift(None, SETTINGS) == ()


def test_each_field_of_the_file_that_moved_is_named() -> None:
    moved = {DECODE: {"model": "glm-2", "poll": "10"}}
    assert drift(LOCK, moved) == (
        FieldChange("decode/0.settings.model", "glm", "glm-2"),
        FieldChange("decode/0.settings.poll", None, "10"),
        FieldChange("decode/0.settings.tp", "8", None),
    )


def test_a_node_that_is_not_what_it_was_is_named() -> None:
    assert drift(LOCK, SETTINGS, {DECODE: {"driver": "580", "gpus": "8"}}) == (
        FieldChange("decode/0.fingerprint.driver", "595", "580"),
    )


def test_nodes_that_came_and_went_are_named_in_order() -> None:
    assert drift(LOCK, {NodeName("decode", 10): {}, NodeName("decode", 9): {}}) == (
        FieldChange("decode/0", "recorded", None),
        FieldChange("decode/9", None, "asked for"),
        FieldChange("decode/10", None, "asked for"),
    )


def test_a_record_without_nodes_is_taken_as_empty() -> None:
    assert drift({}, {}) == ()
    assert drift({"nodes": None}, {}) == ()
