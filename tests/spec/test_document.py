"""YAML's traps: each is either refused with a line or read as what was written."""

from __future__ import annotations

from decimal import Decimal

import pytest

from gpufleet.spec.document import resolve
from gpufleet.spec.load import parse_fleet
from tests.spec.fleets import BASE, edited, loaded, refusal


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("name: demo\n  provider: mock\n", "not YAML: mapping values are not allowed", 2),
        ("name: demo\npools: [a, b\n", "not YAML: did not find expected ',' or ']'", 3),
        ("name: demo\n\tprovider: mock\n", "not YAML: found", 2),
        ("name: 'demo\n", "not YAML: found unexpected end of stream", 2),
        ("name: @demo\n", "not YAML: found character that cannot start any token", 1),
        ("name: demo\nname: other\n", "'name' is written twice, first on line 1", 2),
        ("a: {b: 1, b: 2}\n", "'b' is written twice, first on line 1", 1),
        ("a: 1\n---\nb: 2\n", "a fleet file holds one YAML document, and a second begins here", 2),
        ("a: !!python/object:os.system x\n", "YAML tags are not used in a fleet file", 1),
        ("a: 1\nb: !secret x\n", "YAML tags are not used in a fleet file: !secret", 2),
        ("a: !!binary aGk=\n", "YAML tags are not used in a fleet file", 1),
        ("? [a, b]\n: 1\n", "a key must be text", 1),
        ("a: 1\n~: 2\n", "a key must be text", 2),
        ("a: *b\n", "'*b' names no anchor that was written before it", 1),
        ("a: &a [*a]\n", "'*a' names no anchor that was written before it", 1),
        ("a: 1\nb: " + "[" * 50 + "]" * 50, "nested more than 32 levels deep", 2),
        ("a: " + "[" * 400_000, "not YAML: exceeded maximum nesting depth", 1),
        ("- " * 1000, "nested more than 32 levels deep", 1),
        ('a: 1\nb: "x\\0y"\n', "text with a control character", 2),
        ('a: "\\e[31m"\n', "text with a control character", 1),
        ("a: 1\nb:\n  <<: text\n", "'<<' merges a section, written as <<: *anchor", 3),
    ],
)
def test_what_a_fleet_file_may_not_hold(text: str, message: str, line: int) -> None:
    error = refusal(text)
    assert error.message.startswith(message)
    assert error.where == f"fleet.yaml:{line}"


def test_a_control_character_in_the_file_is_refused() -> None:
    assert refusal("name: a\x07b\n").message.startswith("not YAML: ")


def test_a_bomb_of_aliases_is_refused() -> None:
    levels = "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
    assert "more than 100,000 values" in refusal("a: &a [x,x,x,x,x,x,x,x,x]\n" + levels).message


def test_a_bomb_of_plain_values_is_refused() -> None:
    assert "more than 100,000 values" in refusal("a: [" + "x," * 200_000 + "]").message


def test_anchors_and_merges_may_save_typing() -> None:
    text = edited(
        ("    gpu: H200:8\n    count: 2", "    &big\n    gpu: H200:8\n    region: north\n    count: 2"),
        ("    gpu: H200:8\n    count: 1", "    <<: *big\n    count: 1"),
    )
    native = parse_fleet(text).fleet.pools["native"]
    assert (str(native.gpu), native.region, native.count) == ("H200:8", "north", 1)


@pytest.mark.parametrize("region", ["no", "on", "y", "12:30", "1e10", "0123", "0x10", "1_000", "2026-01-01", "5", "~x"])
def test_text_stays_the_text_that_was_written(region: str) -> None:
    fleet = loaded(("count: 1", f"count: 1\n    region: {region}")).fleet
    assert fleet.pools["native"].region == region


@pytest.mark.parametrize(("version", "read"), [("0.30", "0.30"), ("1.10", "1.10"), ("0.30.0", "0.30.0")])
def test_a_version_keeps_its_zeros(version: str, read: str) -> None:
    text = BASE + f"versions:\n  vllm: {version}\n  vllm_image: registry/vllm\n"
    assert parse_fleet(text).fleet.versions.vllm == read


@pytest.mark.parametrize(
    ("word", "value"), [("no", False), ("off", False), ("yes", True), ("True", True), ("on", True)]
)
def test_every_usual_word_for_a_switch_works(word: str, value: bool) -> None:
    assert loaded(("  listen:", f"  insecure: {word}\n  listen:")).fleet.router.insecure is value


def test_off_is_a_word_where_a_word_is_meant() -> None:
    assert parse_fleet(BASE + "network: {rdma: off}\n").fleet.network.rdma == "off"


def test_money_is_exactly_what_was_written() -> None:
    fleet = parse_fleet(BASE + "budget: {max_usd_per_hour: 100.10}\n").fleet
    assert fleet.budget.max_usd_per_hour == Decimal("100.10")


def test_variables_of_the_server_are_text() -> None:
    fleet = loaded(("count: 1", "count: 1\n    engine: {env: {A: 1, B: true, C: 0010, D: no}}")).fleet
    assert fleet.pools["native"].engine.env == {"A": "1", "B": "true", "C": "0010", "D": "no"}


def test_options_of_a_provider_have_types() -> None:
    provider = (
        "provider: {use: mock, a: 60, b: 0.5, c: true, d: null, e: '60', f: no, g: 012, h: [1, x], i: 1e3, j: .5}"
    )
    options = loaded(("provider: mock", provider)).fleet.provider.options
    assert options == {
        "a": 60, "b": 0.5, "c": True, "d": None, "e": "60", "f": "no", "g": "012", "h": [1, "x"], "i": 1000.0, "j": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    "text", ["9" * 5000, ".inf", ".nan", "NaN", "1e999", "0x10", "0o7", "12:30", "+", "-", ".", "e1"]
)
def test_odd_numbers_are_text_in_free_sections(text: str) -> None:
    assert resolve(text) == text


def test_pool_names_may_look_like_other_types() -> None:
    assert "'1'" in refusal(edited(("  native:", "  1:"))).message
    assert "true" in loaded(("  native:", "  true:\n    role: native")).fleet.pools
