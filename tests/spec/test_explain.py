"""One field, wrong in every way that people get it wrong: place, value, what is allowed."""

from __future__ import annotations

import pytest

from tests.spec.fleets import BASE, edited, refusal

NATIVE = "    count: 1"
ENGINE = "    count: 1\n    engine: {%s}"
POOLS = BASE.split("pools:")
ROUTER = BASE.split("router:")


def engine(setting: str) -> tuple[str, str]:
    return NATIVE, ENGINE % setting


@pytest.mark.parametrize(
    ("change", "line", "message", "hint"),
    [
        (("name: demo\n", ""), 1, "'name' is missing", "Names the service"),
        (("name: demo", "name: my fleet"), 1, "name: 'my fleet': a fleet name is 1 to 24 of a-z", None),
        (("name: demo", "name: Demo"), 1, "name: 'Demo': a fleet name", None),
        (("name: demo", "name: 9lives"), 1, "name: '9lives': a fleet name", None),
        (("name: demo", "name: demo-"), 1, "name: 'demo-': a fleet name", None),
        (("name: demo", "name: [demo]"), 1, "name must be text", None),
        (("name: demo", "nmae: demo"), 1, "unknown key 'nmae'; did you mean 'name'?", "allowed here: name, provider"),
        (("provider: mock\n", ""), 1, "'provider' is missing", "Where nodes are rented"),
        (("provider: mock", "provider: {seed: 1}"), 2, "provider: 'use' is missing", "Name of a provider file"),
        (("provider: mock", "provider: [mock]"), 2, "provider must be a section", None),
        (("provider: mock", "provider: --help"), 2, "provider.use: '--help': a provider's name is made of", None),
        (("    count: 2", "    cout: 2"), 8, "unknown key 'cout' in pools.prefill; did you mean 'count'?", None),
        (("    count: 2\n", ""), 6, "pools.prefill: 'count' is missing", "count: Nodes to rent."),
        (
            ("    count: 2", "    count: 2\n    cuont: 3"),
            9,
            "unknown key 'cuont' in pools.prefill; did you mean 'count'?",
            None,
        ),
        (
            ("    count: 2", "    count: 2\n    tensor_parallel: 8"),
            9,
            "unknown key 'tensor_parallel' in pools.prefill; it belongs under 'engine'",
            "allowed here: role, gpu, count",
        ),
        (("    count: 2", "    count: two"), 8, "pools.prefill.count: 'two' is not a whole number", None),
        (("    count: 2", "    count: 2.5"), 8, "pools.prefill.count: '2.5' is not a whole number", None),
        (("    count: 2", "    count: -1"), 8, "pools.prefill.count: '-1' must be at least 0", None),
        (("    count: 2", "    count: 513"), 8, "pools.prefill.count: '513' must be at most 512", None),
        (
            ("    count: 2", "    count: " + "9" * 5000),
            8,
            "pools.prefill.count: '" + "9" * 60 + "...' is not a whole",
            None,
        ),
        (("    count: 2", "    count: [2]"), 8, "pools.prefill.count is not a whole number", None),
        (("    count: 2", "    count: true"), 8, "pools.prefill.count: 'true' is not a whole number", None),
        (
            ("gpu: H200:8", "gpu: H200x8"),
            7,
            "pools.prefill.gpu: 'H200x8': a GPU shape is model:count, e.g. B200:8",
            None,
        ),
        (("gpu: H200:8", "gpu: H200:0"), 7, "pools.prefill.gpu: 'H200:0': a GPU shape", None),
        (("gpu: H200:8", "gpu: {H200: 8}"), 7, "pools.prefill.gpu: a GPU shape is model:count", None),
        (("  native:", "  Native:"), 12, "pools.Native: 'Native': a pool name is 1 to 16 of a-z", None),
        (("  native:", "  a pool:"), 12, "pools.a pool: 'a pool': a pool name", None),
        (
            ("class: batch", "class: bulk"),
            22,
            "router.channels.batch.class: 'bulk' is not allowed",
            "allowed: interactive, batch",
        ),
        (
            ("class: batch", "class: interactve"),
            22,
            "router.channels.batch.class: 'interactve' is not allowed; did you mean 'interactive'?",
            None,
        ),
        (("    chat:", "    'a b':"), 18, "router.channels.a b: 'a b': a channel name", None),
        (
            engine("kv_cache_dtype: fp16"),
            15,
            "pools.native.engine.kv_cache_dtype: 'fp16' is not allowed",
            "allowed: fp8, bf16",
        ),
        (engine("mtp: maybe"), 15, "pools.native.engine.mtp: 'maybe' is not true or false", None),
        (engine("gpu_memory_utilization: 1.5"), 15, "gpu_memory_utilization: '1.5' must be at most 1", None),
        (engine("gpu_memory_utilization: .nan"), 15, "gpu_memory_utilization: '.nan' is not a number", None),
        (engine("gpu_memory_utilization: nan"), 15, "gpu_memory_utilization: 'nan' must be a finite number", None),
        (engine("senders: 0"), 15, "engine.senders: '0' must be at least 1", None),
        (engine("extra_args: --foo"), 15, "engine.extra_args: '--foo' must be a list", None),
        (engine("extra_args: [[a]]"), 15, "engine.extra_args[0] must be text", None),
        (engine("env: [A=1]"), 15, "engine.env must be a section of 'key: value' lines", None),
        (engine("env: {A: [1]}"), 15, "engine.env.A must be text", None),
        (("127.0.0.1:8080", "8080"), 16, "router.listen: '8080': an address is host:port", None),
        (("127.0.0.1:8080", "localhost:8080"), 16, "'localhost' is not an IP address to listen on", None),
        (("127.0.0.1:8080", "0.0.0.0:99999"), 16, "router.listen: '0.0.0.0:99999': an address is host:port", None),
        (("127.0.0.1:8080", "12:30"), 16, "'12' is not an IP address to listen on", None),
        (("  listen:", "  queue_timeout: 30\n  listen:"), 16, "router.queue_timeout: '30': a duration is", None),
        (("  listen:", "  queue_timeout: 0s\n  listen:"), 16, "router.queue_timeout: '0s': a duration is", None),
        (("  listen:", "  queue_timeout: 1h30m\n  listen:"), 16, "router.queue_timeout: '1h30m': a duration is", None),
        (("zai-org/GLM-5.1-FP8", "two words"), 4, "model.id: 'two words': must be one word", None),
        (("zai-org/GLM-5.1-FP8", "--trust"), 4, "model.id: '--trust': must be one word", None),
        (("  id:", "  profile: dsv32\n  id:"), 4, "model.profile: 'dsv32' is not allowed", "allowed: glm5"),
        (("  id:", "  max_seq_len: 10\n  id:"), 4, "model.max_seq_len: '10' must be at least 1024", None),
    ],
)
def test_a_wrong_field(change: tuple[str, str], line: int, message: str, hint: str | None) -> None:
    error = refusal(edited(change))
    assert message in error.message
    assert error.where == f"fleet.yaml:{line}"
    assert hint is None or hint in str(error.hint)


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ("max_usd_per_hour: 0", "budget.max_usd_per_hour: '0' must be more than 0"),
        ("max_usd_per_hour: -5", "'-5' must be more than 0"),
        ("max_usd_per_hour: NaN", "'NaN' must be a finite number"),
        ("max_usd_per_hour: Infinity", "'Infinity' must be a finite number"),
        ("max_usd_per_hour: .inf", "'.inf' is not a number"),
        ("max_usd_per_hour: $50", "'$50' is not a number"),
        ("max_usd_per_hour: 1e999999999", "'1e999999999' must be at most 1000000000"),
        ("max_usd_per_hour: 1e-999999", "'1e-999999' has more than 6 decimal places"),
        ("max_usd_per_hour: '9' * 9", "not YAML"),
        ("ttl: 99999999999d", "budget.ttl: '99999999999d': a duration is"),
        ("ttl: -1h", "budget.ttl: '-1h': a duration is"),
        ("ttl: 8 h", "budget.ttl: '8 h': a duration is"),
    ],
)
def test_a_wrong_limit(budget: str, message: str) -> None:
    error = refusal(BASE + f"budget:\n  {budget}\n")
    assert message in error.message
    assert error.where == "fleet.yaml:25"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (POOLS[0] + "pools: none\nrouter:" + ROUTER[1], "pools: 'none' must be a section of 'key: value' lines"),
        (POOLS[0] + "pools: {}\nrouter:" + ROUTER[1], "pools needs at least one entry"),
        (ROUTER[0] + "router: none\n", "router: 'none' must be a section of 'key: value' lines"),
        (ROUTER[0] + "router: {channels: {}}\n", "router.channels needs at least one entry"),
        (ROUTER[0] + "router: {channels: [chat]}\n", "router.channels must be a section of 'key: value' lines"),
    ],
)
def test_a_section_that_is_none_is_refused(text: str, message: str) -> None:
    assert refusal(text).message == message
