"""A fleet written out loads back as the same fleet."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.spec import load
from gpufleet.spec.document import parse_document, typed_value
from gpufleet.spec.dump import dump_fleet
from gpufleet.spec.load import parse_fleet
from gpufleet.spec.model import Fleet
from gpufleet.spec.values import format_duration, parse_duration
from tests.spec.fleets import BASE, loaded

durations = st.integers(1, 10_000_000).map(lambda seconds: timedelta(seconds=seconds))
money = st.decimals(Decimal("0.000001"), 10**9, places=6)
text = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=20)
words = st.from_regex(r"[A-Za-z0-9_.:/~][A-Za-z0-9_.:/~=,@+-]{0,20}", fullmatch=True)
names = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
secrets = st.one_of(names.map(lambda n: f"env:{n.replace('-', '_')}"), names.map(lambda n: f"file:dir/{n} x.key"))
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**15), 10**15), st.floats(allow_nan=False, allow_infinity=False), text
)
free = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3))
provider_names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
providers = st.builds(
    lambda use, options: {**options, "use": use}, provider_names, st.dictionaries(text, free, max_size=3)
)


def optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


engines = optional(
    tensor_parallel=st.integers(1, 16),
    senders=st.integers(1, 16),
    kv_cache_dtype=st.sampled_from(["fp8", "bf16"]),
    mtp=st.booleans(),
    gpu_memory_utilization=st.floats(0.0001, 1),
    extra_args=st.lists(text, max_size=3),
    env=st.dictionaries(text, text, max_size=3),
)
pools = st.fixed_dictionaries(
    {"gpu": st.sampled_from(["B200:8", "H200:8", "CPU:1"]), "count": st.integers(0, 512)},
    optional={
        "role": st.sampled_from(["prefill", "decode", "native"]),
        "provider": providers,
        "region": words,
        "max_usd_per_hour": money,
        "disk_gb": st.integers(1, 10**6),
        "engine": engines,
    },
)
channels = st.fixed_dictionaries(
    {"class": st.sampled_from(["interactive", "batch"]), "key": secrets}, optional={"priority": st.integers(-100, 100)}
)
routers = st.fixed_dictionaries(
    {"channels": st.dictionaries(names, channels, min_size=1, max_size=3)},
    optional={
        "host": words,
        "listen": st.sampled_from(["0.0.0.0:1", "[::1]:8443"]),
        "tls": st.just("self-signed") | st.fixed_dictionaries({"certificate": secrets, "key": secrets}),
        "insecure": st.booleans(),
        "queue_timeout": durations,
    },
)
fleets = st.fixed_dictionaries(
    {
        "name": names,
        "provider": providers,
        "pools": st.dictionaries(names, pools, min_size=1, max_size=3),
        "router": routers,
    },
    optional={
        "model": optional(id=words, revision=words, hf_token=secrets, stand_in=st.booleans()),
        "versions": optional(vllm=words, vllm_image=words),
        "network": optional(rdma=st.sampled_from(["required", "off"]), devices=words),
        "budget": optional(max_usd_per_hour=money, max_usd_total=money, ttl=durations),
        "lock": st.dictionaries(text, free, max_size=3),
    },
)


def reread(text: str) -> Fleet:
    """Through the loader's own reading, without its checks, so that any fleet can be tried."""
    root = parse_document(text)
    assert isinstance(root, load.Mapping)
    return Fleet.model_validate(load._input(root))


@settings(max_examples=150, deadline=None)
@given(fleets)
def test_every_fleet_survives_the_round_trip(data: dict[str, Any]) -> None:
    fleet = Fleet.model_validate(data)
    assert reread(dump_fleet(fleet)) == fleet


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(text, free, max_size=3))
def test_free_sections_keep_their_types(data: dict[str, Any]) -> None:
    fleet = loaded().fleet.model_copy(update={"lock": data})
    assert reread(dump_fleet(fleet)).lock == data


@given(durations)
def test_a_duration_survives_the_round_trip(value: timedelta) -> None:
    assert parse_duration(format_duration(value)) == value


def test_the_text_is_what_a_person_would_write() -> None:
    text = BASE + "budget: {max_usd_per_hour: 41.50, max_usd_total: 1e3, ttl: 480m}\n"
    assert dump_fleet(parse_fleet(text).fleet) == (
        BASE.replace("model:\n  id: zai-org/GLM-5.1-FP8\n", "").replace("  listen: 127.0.0.1:8080\n", "")
        + "budget:\n  max_usd_per_hour: 41.50\n  max_usd_total: 1000\n  ttl: 8h\n"
    )


def test_words_that_yaml_would_misread_are_quoted() -> None:
    fleet = loaded(("count: 1", "count: 1\n    region: no\n    engine: {env: {A: '1'}}")).fleet
    assert "region: 'no'" in dump_fleet(fleet)
    assert "A: '1'" in dump_fleet(fleet)


def test_json_mode_has_the_same_words() -> None:
    data = parse_fleet(BASE + "budget: {ttl: 30m}\n").fleet.model_dump(mode="json", by_alias=True)
    assert data["budget"]["ttl"] == "30m"
    assert data["router"]["queue_timeout"] == "30m"
    assert data["pools"]["decode"]["gpu"] == "B200:8"
    assert data["router"]["channels"]["chat"] == {"class": "interactive", "key": "env:CHAT_KEY", "priority": 0}


def test_a_lock_makes_a_valid_fleet_file() -> None:
    fleet = loaded().fleet.model_copy(update={"lock": {"model": {"commit": "0123456"}, "at": "2026-01-01T00:00:00Z"}})
    found = parse_fleet(dump_fleet(fleet))
    assert found.fleet.lock == {"model": {"commit": "0123456"}, "at": "2026-01-01T00:00:00Z"}
    root = parse_document(found.text)
    assert root is not None
    assert typed_value(root)["lock"]["model"]["commit"] == "0123456"
