"""What needs several fields or the catalog: each rule refuses what would fail later, and says where and why."""

from __future__ import annotations

import pytest

from gpufleet.domain.nodes import Role
from gpufleet.serving import commands, topology
from gpufleet.spec.checks.front import NODE_PORTS
from gpufleet.spec.checks.managed import managed_flag
from gpufleet.spec.load import parse_fleet
from tests.spec.fleets import BASE, edited, loaded, problems

PREFILL, DECODE, NATIVE = (
    "    gpu: H200:8\n    count: 2",
    "    gpu: B200:8\n    count: 2",
    "    gpu: H200:8\n    count: 1",
)
ALL = (PREFILL, DECODE, NATIVE)
NO_NATIVE = ("  native:\n" + NATIVE + "\n", "")
NO_DECODE = ("  decode:\n" + DECODE + "\n", "")
NO_PREFILL = ("  prefill:\n" + PREFILL + "\n", "")
NO_BATCH = ("    batch:\n      class: batch\n      key: env:BATCH_KEY\n", "")
STAND_IN = ("  id: zai-org/GLM-5.1-FP8", "  id: tiny\n  stand_in: true")


def engine(pool: str, settings: str) -> tuple[str, str]:
    return pool, f"{pool}\n    engine: {{{settings}}}"


def engines(settings: str) -> list[tuple[str, str]]:
    return [engine(pool, settings) for pool in ALL]


def gpu(pool: str, shape: str) -> tuple[str, str]:
    return pool, pool.replace("H200:8", shape).replace("B200:8", shape)


def only_error(*changes: tuple[str, str]) -> tuple[str, str, str]:
    """Path, message and hint of the one error."""
    (problem,) = [p for p in problems(edited(*changes)) if p.severity == "error"]
    return problem.path, problem.message, problem.hint or ""


def only_warning(*changes: tuple[str, str]) -> tuple[str, str]:
    (problem,) = loaded(*changes).warnings
    return problem.path, problem.message


# Sizing


@pytest.mark.parametrize(("pool", "role"), [(PREFILL, "prefill"), (NATIVE, "native")])
def test_eight_h100_are_too_small_and_the_reason_and_what_fits_is_told(pool: str, role: str) -> None:
    path, message, hint = only_error(gpu(pool, "H100:8"))
    assert path == f"pools.{role}.gpu"
    assert message == (
        f"pools.{role}.gpu: 'H100:8' does not fit: GLM-5.1-FP8 needs about 893 GB of VRAM per {role} node, "
        "and 8 x H100 has 640 GB"
    )
    assert hint == f"fits {role}: H200:8, B200:8, B300:8"


@pytest.mark.parametrize(
    ("pool", "shape", "reason"),
    [
        (DECODE, "H200:8", "do not run on Hopper (H200)"),
        (DECODE, "B200:4", "TileRT decode runs on exactly 8 GPUs of one node, and B200:4 has 4"),
        (DECODE, "B200:16", "exactly 8 GPUs"),
        (DECODE, "RTX5090:8", "do not run on Blackwell Consumer (RTX5090)"),
        (DECODE, "MI355X:8", "AMD GPU"),
        (PREFILL, "MI300X:8", "AMD GPU"),
        (PREFILL, "A100:16", "compute capability 9.0 and newer; A100 has 8.0"),
        (PREFILL, "H200:4", "tensor_parallel 8 needs as many GPUs on one node, and H200:4 has 4"),
        (PREFILL, "H100:16", "8 x H100 has 640 GB"),
    ],
)
def test_a_shape_that_cannot_serve_its_role_is_refused(pool: str, shape: str, reason: str) -> None:
    assert reason in only_error(gpu(pool, shape))[1]


def test_an_unknown_gpu_is_refused_with_the_one_that_was_meant() -> None:
    _, message, hint = only_error(gpu(DECODE, "B2000:8"))
    assert message == "pools.decode.gpu: 'B2000:8' is not a known GPU; did you mean 'B200'?"
    assert "H200, B200, B300" in hint


def test_b300_decode_is_a_warning() -> None:
    assert only_warning(gpu(DECODE, "B300:8")) == (
        "pools.decode.gpu",
        "pools.decode.gpu: TileRT on B300:8 is reported to work, but TileRT does not support it",
    )


def test_a_gpu_name_may_be_written_in_lower_case() -> None:
    assert str(loaded(gpu(DECODE, "b200:8")).fleet.pools["decode"].gpu) == "B200:8"


@pytest.mark.parametrize(("pool", "least"), [(PREFILL, 800), (DECODE, 1600), (NATIVE, 800)])
def test_a_disk_that_cannot_hold_the_weights_is_refused(pool: str, least: int) -> None:
    assert f"needs {least} GB" in only_error((pool, f"{pool}\n    disk_gb: {least - 1}"))[1]
    assert loaded((pool, f"{pool}\n    disk_gb: {least}")).warnings == ()


def test_more_tokens_than_the_model_has_are_refused() -> None:
    assert only_error(("  id:", "  max_seq_len: 202753\n  id:"))[0] == "model.max_seq_len"
    assert only_error(engine(DECODE, "max_seq_len: 202753"))[0] == "pools.decode.engine.max_seq_len"


@pytest.mark.parametrize("name", ["zai-org/GLM-5.1", "zai-org/GLM-5.2-FP8"])
def test_a_model_that_cannot_work_is_refused_with_the_reason(name: str) -> None:
    path, message, _ = only_error(("zai-org/GLM-5.1-FP8", name))
    assert path == "model.id"
    assert "cannot be served: " in message


def test_a_model_that_the_catalog_lacks_is_a_warning() -> None:
    path, message = only_warning(("zai-org/GLM-5.1-FP8", "zai-org/GLM-5.1-FP9"))
    assert path == "model.id"
    assert "did you mean 'zai-org/GLM-5.1-FP8'?" in message


@pytest.mark.parametrize(
    ("versions", "path"),
    [
        ("{vllm: 0.23.9, vllm_image: 'r/vllm:v0.23.9'}", "versions.vllm"),
        ("{transformers: 4.46.3}", "versions.transformers"),
        ("{vllm: 0.27.0}", "versions.vllm_image"),
        ("{vllm_image: 'localhost:5000/vllm:0.25.1'}", "versions.vllm_image"),
    ],
)
def test_versions_that_cannot_serve_the_model_are_refused(versions: str, path: str) -> None:
    (problem,) = problems(BASE + f"versions: {versions}\n")
    assert problem.path == path


@pytest.mark.parametrize(
    "image", ["vllm/vllm-openai@sha256:0a", "r:5000/vllm", "r/vllm:nightly", "r/vllm:v0.26.0-cu130"]
)
def test_an_image_without_another_version_in_its_tag_is_fine(image: str) -> None:
    assert parse_fleet(BASE + f"versions: {{vllm_image: '{image}'}}\n").warnings == ()


# Roles and counts


def test_a_pool_without_a_role_is_refused_with_the_one_that_was_meant() -> None:
    path, message, hint = only_error(("  decode:", "  decoder:"))
    assert (path, message) == (
        "pools.decoder",
        "pools.decoder has no role, and its name is none; did you mean 'decode'?",
    )
    assert "prefill, decode, native" in hint


def test_a_pool_of_any_name_may_name_its_role() -> None:
    assert loaded(("  decode:", "  fast:\n    role: decode")).fleet.pools_of(Role.DECODE) == ["fast"]


def test_no_more_decode_nodes_than_prefill_nodes() -> None:
    path, message, hint = only_error(("count: 2", "count: 1"))
    assert path == "pools.decode.count"
    assert "2 decode nodes need as many prefill nodes, and there are 1" in message
    assert "one staging buffer per rank" in message
    assert hint == "set gate: on in the prefill pool, set the decode count to at most 1, or add prefill nodes"


def test_behind_a_gate_a_prefill_node_feeds_several_decode_nodes() -> None:
    found = loaded((PREFILL, "    gpu: H200:8\n    count: 1\n    gate: on"))
    assert found.fleet.pools["prefill"].gate
    assert found.warnings == ()


def test_a_gate_belongs_to_a_prefill_pool() -> None:
    path, message, _ = only_error((DECODE, f"{DECODE}\n    gate: on"))
    assert path == "pools.decode.gate"
    assert "stands before vLLM on prefill nodes" in message


@pytest.mark.parametrize(("removed", "role"), [(NO_NATIVE, "decode"), (NO_DECODE, "native")])
def test_nothing_decodes_without_prefill(removed: tuple[str, str], role: str) -> None:
    changes = [NO_PREFILL, removed]
    changes += [NO_BATCH, ("  listen:", "  without_max_tokens: tilert\n  listen:")] if role == "decode" else []
    path, message, _ = only_error(*changes)
    assert path == f"pools.{role}.count"
    assert "no prefill node" in message


def test_prefill_alone_serves_nobody() -> None:
    found = {p.path: p.message for p in problems(edited(NO_DECODE, NO_NATIVE))}
    assert "neither decode nor native" in found["router.channels.chat.class"]
    assert "served by native nodes, and the fleet has none" in found["router.channels.batch.class"]


def test_interactive_requests_without_a_limit_need_somewhere_to_go() -> None:
    path, _, hint = only_error(NO_NATIVE, NO_BATCH)
    assert path == "router.without_max_tokens"
    assert "ends such answers at 256 tokens" in hint
    assert loaded(NO_NATIVE, NO_BATCH, ("  listen:", "  without_max_tokens: tilert\n  listen:")).warnings == ()


def test_interactive_channels_may_live_on_native_nodes_alone() -> None:
    assert loaded(NO_DECODE).warnings == ()


def test_a_pool_of_zero_nodes_counts_as_none() -> None:
    assert only_error(("count: 1", "count: 0"), NO_BATCH)[0] == "router.without_max_tokens"


# What both ends must share


@pytest.mark.parametrize(
    ("pool", "setting", "path"),
    [
        (DECODE, "kv_cache_dtype: bf16", "pools.decode.engine.kv_cache_dtype"),
        (DECODE, "transport: mooncake", "pools.decode.engine.transport"),
        (DECODE, "max_seq_len: 100000", "pools.decode.engine.max_seq_len"),
        (DECODE, "senders: 4", "pools.decode.engine.senders"),
        (DECODE, "tensor_parallel: 4", "pools.decode.engine.tensor_parallel"),
        (NATIVE, "kv_cache_dtype: bf16", "pools.native.engine.kv_cache_dtype"),
        (NATIVE, "max_seq_len: 100000", "pools.native.engine.max_seq_len"),
        (PREFILL, "senders: 4", "pools.prefill.engine.senders"),
    ],
)
def test_ends_of_a_handover_must_agree(pool: str, setting: str, path: str) -> None:
    assert only_error(engine(pool, setting), ("router:", "network: {rdma: required}\nrouter:"))[0] == path


def test_a_difference_is_shown_where_it_was_written() -> None:
    found = problems(edited(engine(PREFILL, "kv_cache_dtype: bf16")))
    assert {(p.path, p.line) for p in found} == {("pools.prefill.engine.kv_cache_dtype", 9)}
    assert found[0].message == (
        "pools.decode.engine.kv_cache_dtype is fp8, and pools.prefill.engine.kv_cache_dtype is bf16: "
        "both ends of a hand-over must agree"
    )


def test_the_same_setting_on_every_role_is_fine() -> None:
    assert loaded(*engines("kv_cache_dtype: bf16, max_seq_len: 100000")).warnings == ()


def test_decode_may_take_longer_prompts_than_prefill_sends() -> None:
    assert loaded(engine(PREFILL, "max_seq_len: 100000")).warnings == ()


def test_mtp_is_needed_on_every_role() -> None:
    found = problems(edited(*engines("mtp: false")))
    assert [p.path for p in found] == [f"pools.{role}.engine.mtp" for role in ("prefill", "decode", "native")]


def test_native_needs_as_many_ranks_as_prefill() -> None:
    four = "    gpu: B300:8\n    count: 2\n    engine: {tensor_parallel: 4}"
    assert {p.path for p in problems(edited((PREFILL, four)))} == {"pools.prefill.engine.tensor_parallel"}


@pytest.mark.parametrize(("rdma", "severity"), [("off", "error"), ("preferred", "warning")])
def test_mooncake_needs_rdma(rdma: str, severity: str) -> None:
    changes = [*engines("transport: mooncake"), ("router:", f"network: {{rdma: {rdma}}}\nrouter:")]
    found = problems(edited(*changes)) if severity == "error" else loaded(*changes).warnings
    assert {(p.path, str(p.severity)) for p in found} == {
        ("pools.prefill.engine.transport", severity),
        ("pools.decode.engine.transport", severity),
    }


def test_a_stand_in_may_run_on_anything_as_long_as_both_ends_agree() -> None:
    changes = [gpu(pool, "CPU:1") for pool in ALL]
    text = edited(STAND_IN, *changes).replace("gpu: CPU:1", "gpu: CPU:1\n    engine: {tensor_parallel: 1, mtp: false}")
    assert parse_fleet(text).warnings == ()
    differing = text.replace(
        "tensor_parallel: 1, mtp: false", "tensor_parallel: 1, mtp: false, kv_cache_dtype: bf16", 1
    )
    assert {p.path for p in problems(differing)} == {"pools.prefill.engine.kv_cache_dtype"}


# Arguments and variables that gpufleet sets


@pytest.mark.parametrize(
    ("pool", "argument", "flag"),
    [
        (PREFILL, "--tensor-parallel-size", "--tensor-parallel-size"),
        (PREFILL, "--tensor-parallel-size=4", "--tensor-parallel-size"),
        (PREFILL, "--tensor_parallel_size", "--tensor-parallel-size"),
        (PREFILL, "-tp", "-tp"),
        (PREFILL, "--max-model", "--max-model-len"),
        (PREFILL, "--kv-transfer-config.kv_role", "--kv-transfer-config"),
        (PREFILL, "--enforce-eager", "--enforce-eager"),
        (NATIVE, "--port", "--port"),
        (NATIVE, "--speculative-config", "--speculative-config"),
        (DECODE, "--engine", "--engine"),
        (DECODE, "--with-mtp", "--with-mtp"),
        (DECODE, "--ctrl-port=1", "--ctrl-port"),
        (DECODE, "--model-weights", "--model-weights-dir"),
    ],
)
def test_an_argument_that_gpufleet_sets_is_refused(pool: str, argument: str, flag: str) -> None:
    path, message, hint = only_error(engine(pool, f"extra_args: ['--seed=1', '{argument}']"))
    assert path.endswith(".engine.extra_args[1]")
    assert message == f"'{flag}' is set by gpufleet"
    assert hint


@pytest.mark.parametrize(
    "argument", ["--max-num-seqs", "--kv-cache-dtype-skip-layers", "--enable-prefix-caching", "16", "x"]
)
def test_other_arguments_pass(argument: str) -> None:
    assert managed_flag(Role.PREFILL, argument) is None
    assert loaded(engine(PREFILL, f"extra_args: ['{argument}']")).warnings == ()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("TILERT_PD_SENDERS", "use engine.senders instead"),
        ("VLLM_NIXL_SIDE_CHANNEL_HOST", "leave it out: it follows from the rest"),
        ("UCX_NET_DEVICES", "use network.devices instead"),
        ("HF_TOKEN", "use model.hf_token instead"),
    ],
)
def test_a_variable_that_gpufleet_sets_is_refused(name: str, hint: str) -> None:
    assert only_error(engine(DECODE, f"env: {{{name}: '8'}}")) == (
        f"pools.decode.engine.env.{name}",
        f"'{name}' is set by gpufleet",
        hint,
    )


def test_a_variable_needs_a_name_that_a_shell_knows() -> None:
    assert "'A B' is not the name" in only_error(engine(DECODE, "env: {A B: '1'}"))[1]


def test_a_buffer_in_host_memory_needs_one_sender() -> None:
    assert "one sender, and there are 8" in only_error(engine(DECODE, "extra_args: ['--pd-buffer-device', cpu]"))[1]
    assert "one sender" in only_error(engine(PREFILL, "env: {TILERT_PD_BUFFER_DEVICE: cpu}"))[1]


def test_transports_without_rdma_are_told() -> None:
    tcp = engine(PREFILL, "env: {UCX_TLS: 'tcp,cuda_copy'}")
    assert "has no RDMA transport" in only_warning(tcp)[1]
    assert "has no RDMA transport" in only_error(tcp, ("router:", "network: {rdma: required}\nrouter:"))[1]
    assert loaded(tcp, ("router:", "network: {rdma: off}\nrouter:")).warnings == ()
    assert loaded(engine(PREFILL, "env: {UCX_TLS: 'rc_x,cuda_copy'}")).warnings == ()


# Router


def test_the_router_runs_here_or_on_a_node_that_exists() -> None:
    path, message, hint = only_error(("  listen:", "  host: prefill/2\n  listen:"))
    assert path == "router.host"
    assert "'prefill/2' is not a node of this fleet; did you mean 'prefill/" in message
    assert hint.startswith("local (this machine), or a node such as prefill/0")


def test_a_router_on_a_node_keeps_off_the_ports_of_the_service() -> None:
    assert (
        "port 8000 is taken" in only_error(("  listen: 127.0.0.1:8080", "  host: prefill/0\n  listen: 0.0.0.0:8000"))[1]
    )


def test_a_router_on_a_node_that_listens_on_loopback_is_a_warning() -> None:
    assert "from that node only" in only_warning(("  listen:", "  host: prefill/0\n  listen:"))[1]


def test_the_ports_of_the_service_are_those_it_uses() -> None:
    assert {value for name, value in vars(topology).items() if name.endswith("_PORT")} <= NODE_PORTS


def test_plain_http_and_a_certificate_contradict_each_other() -> None:
    tls = "  insecure: true\n  tls: {certificate: file:a, key: file:b}\n  listen:"
    assert only_error(("  listen:", tls))[0] == "router.insecure"


def test_a_self_signed_certificate_may_be_asked_for_by_word() -> None:
    router = loaded(("  listen:", "  tls: self-signed\n  listen:")).fleet.router
    assert router.tls is not None
    assert router.tls.certificate is None


@pytest.mark.parametrize("tls", ["{}", "{certificate: file:a}", "{key: file:b}", "selfsigned", "5"])
def test_tls_is_both_files_or_the_word(tls: str) -> None:
    path, message, _ = only_error(("  listen:", f"  tls: {tls}\n  listen:"))
    assert path == "router.tls"
    assert "self-signed" in message
    assert "certificate and key" in message


def test_a_misspelt_key_under_tls_is_told_as_such() -> None:
    tls = "  tls: {certifcate: file:a, key: file:b}\n  listen:"
    assert "did you mean 'certificate'?" in only_error(("  listen:", tls))[1]


@pytest.mark.parametrize("key", ["env:CHAT_KEY", "file:./a/../k"])
def test_two_channels_need_two_keys(key: str) -> None:
    changes = [("key: env:BATCH_KEY", f"key: {key}")]
    changes += [("key: env:CHAT_KEY", "key: file:k")] if key.startswith("file") else []
    path, message, _ = only_error(*changes)
    assert path == "router.channels.batch.key"
    assert message.startswith("router.channels.batch and chat have the same key")


# Providers and money


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("host", "'[1.2.3.4]'"),
        ("host", "ssh://a"),
        ("host", "root@a"),
        ("host", "a:22"),
        ("host", "a/b"),
        ("host", "'a b'"),
        ("host", "'[fe80::1]'"),
        ("private_ip", "'fe80::1'"),
        ("private_ip", "'[10.0.0.1]'"),
    ],
)
def test_a_host_is_a_plain_address(key: str, value: str) -> None:
    path, message, hint = only_error(("provider: mock", f"provider: {{use: ssh, hosts: [{{{key}: {value}}}]}}"))
    assert path == f"provider.hosts[0].{key}"
    assert "is not an I" in message
    assert "no brackets" in hint


@pytest.mark.parametrize("host", ["10.0.0.1", "gpu-1.example.org", "gpu_1", "'fe80::1'", "a"])
def test_addresses_and_names_are_hosts(host: str) -> None:
    assert loaded(("provider: mock", f"provider: {{use: ssh, hosts: [{{host: {host}}}, {host}]}}")).warnings == ()


def test_hosts_of_a_pools_own_provider_are_checked_too() -> None:
    own = f"{DECODE}\n    provider: {{use: ssh, hosts: [{{host: '[::1]'}}]}}"
    assert only_error((DECODE, own))[0] == "pools.decode.provider.hosts[0].host"


def test_a_pool_may_name_a_provider_without_options() -> None:
    assert loaded((DECODE, f"{DECODE}\n    provider: ssh")).fleet.provider_of("decode").use == "ssh"


def test_limits_that_contradict_each_other_are_told() -> None:
    text = (
        edited((DECODE, f"{DECODE}\n    max_usd_per_hour: 60")) + "budget: {max_usd_per_hour: 50, max_usd_total: 10}\n"
    )
    assert [w.path for w in parse_fleet(text).warnings] == ["pools.decode.max_usd_per_hour", "budget.max_usd_total"]


def test_every_argument_that_gpufleet_writes_is_one_that_the_user_may_not() -> None:
    fleet = loaded().fleet
    net = topology.build_topology(fleet, {node: f"10.0.0.{i}" for i, node in enumerate(fleet.nodes(), 1)})
    paths = commands.Paths("/w/hf", "/w/tilert")
    launches = {
        Role.PREFILL: commands.prefill_launch,
        Role.DECODE: commands.decode_launch,
        Role.NATIVE: commands.native_launch,
    }
    for role, launch in launches.items():
        flags = {word for word in launch(fleet, net, fleet.nodes_of(role)[0], paths).argv if word.startswith("--")}
        assert {flag for flag in flags if managed_flag(role, flag) is None} == set(), role
