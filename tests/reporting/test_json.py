"""JSON documents lose no digit of money, name their times' zone, and have stable keys."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import pytest

from gpufleet.domain.market import GpuShape, InstanceState
from gpufleet.domain.nodes import NodeName
from gpufleet.reporting.json import bill_document, dumps, status_document, to_json
from tests.reporting.values import bill, status


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Decimal("41.50"), "41.50"),
        (Decimal("1E+2"), "100"),
        (Decimal("0.0000001"), "0.0000001"),
        (datetime(2026, 5, 4, 12, 30, tzinfo=UTC), "2026-05-04T12:30:00Z"),
        (datetime(2026, 5, 4, 14, 30, tzinfo=timezone(timedelta(hours=2))), "2026-05-04T12:30:00Z"),
        (NodeName("decode", 0), "decode/0"),
        (GpuShape("B200", 8), "B200:8"),
        (InstanceState.RUNNING, "running"),
        (Path("fleet.yaml"), "fleet.yaml"),
        (None, None),
        (True, True),
        ((1, 2.5), [1, 2.5]),
        ({NodeName("decode", 0): Decimal(1)}, {"decode/0": "1"}),
        (frozenset({"b", "a"}), ["a", "b"]),
    ],
)
def test_each_kind_of_value_has_one_form(value: object, expected: object) -> None:
    assert to_json(value) == expected
    json.dumps(to_json(value))


@pytest.mark.parametrize("value", [object(), b"bytes", datetime(2026, 5, 4)])
def test_a_value_without_an_agreed_form_is_an_error(value: object) -> None:
    with pytest.raises(TypeError):
        to_json(value)


def test_a_status_has_its_price_on_top_and_unknown_as_null() -> None:
    document = json.loads(dumps(status_document(status())))
    assert list(document) == ["fleet", "usd_per_hour", "nodes", "cells", "endpoint", "bill", "problems", "gates"]
    assert document["usd_per_hour"] == "41.50"
    assert document["nodes"][0]["node"] == "decode/0"
    assert document["bill"]["total_usd"] == "83.00"
    assert document["bill"]["lines"][0]["ended"] is None


def test_a_bill_names_its_fleet_and_total() -> None:
    document = json.loads(dumps(bill_document("quickstart", bill())))
    assert document["fleet"] == "quickstart"
    assert document["bill"]["usd_per_hour"] == "0"
    assert document["bill"]["lines"][0]["usd_per_hour"] == "41.50"


def test_a_stream_document_is_one_line() -> None:
    assert "\n" not in dumps({"line": "a\nb"}, indent=None)
