"""Stand-in for ``vllm serve`` 0.26: prefill, native decode, or both, with the TileRT and NIXL connectors."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, __file__.rsplit("/gpufleet/", 1)[0])

from gpufleet.twin import vllm_flags, wire
from gpufleet.twin.httpd import HttpServer
from gpufleet.twin.kv_sender import Sender, SenderConfig
from gpufleet.twin.nixl import NixlConnector
from gpufleet.twin.nodefacts import (
    NodeFacts,
    bind_address,
    die,
    installed,
    log,
    major,
    no_gpu_in_container,
    node_facts,
    require,
    transport_package,
    visible,
)
from gpufleet.twin.vllm_app import ServerInfo, VllmApp
from gpufleet.twin.vllm_engine import Engine

VERSION = "0.26.0"
GLM5_VRAM_GB = 893
"""What one FP8 instance of GLM-5 or GLM-5.1 needs over all its GPUs (vLLM recipes, vram_minimum_gb)."""
GLM5_CONTEXT = 202752
TINY_CONTEXT = 32768
MINIMUM_DRIVER = 580
SPARSE_MLA_GPUS = ("H100", "H200", "H20", "GH200", "B200", "B300", "GB200", "GB300")
"""GLM-5's sparse attention has no kernel for anything older than Hopper."""
CONNECTORS = (
    "NixlConnector", "TileRTConnector", "MultiConnector", "LMCacheConnectorV1", "OffloadingConnector",
    "SharedStorageConnector", "ExampleConnector", "MooncakeConnector", "P2pNcclConnector",
)  # fmt: skip
TILERT_MODULE = "tilert.pd_vllm.prefill_connector"
_PROGRESS_STEPS = 10


class KvConfig(NamedTuple):
    """What --kv-transfer-config asks for."""

    nixl: bool = False
    tilert: dict[str, Any] | None = None
    """TileRT's extra config, when it is one of the connectors."""
    fail_on_load_error: bool = True


def main(argv: list[str]) -> int:
    """``serve MODEL ...``: check what the real one checks, load, serve."""
    if argv[:1] in (["--version"], ["-v"]):
        log(installed("vllm") or VERSION)
        return 0
    require("vllm")
    args = vllm_flags.build_parser().parse_args(argv[1:] if argv[:1] == ["serve"] else argv)
    args.model = args.model_tag or args.model or die("ValueError: no model given")
    facts = node_facts()
    log(f"INFO [api_utils.py:345] version {installed('vllm') or VERSION} model {args.model}")
    kv = _kv_config(args)
    speculative = _json_flag(args.speculative_config, "speculative-config")
    _require_hardware(args, facts)
    glm5 = _check_model(args.model)
    _settle_length(args, GLM5_CONTEXT if glm5 else TINY_CONTEXT)
    if glm5 and facts.gpu_model not in SPARSE_MLA_GPUS:
        die("ValueError: No valid attention backend found for cuda: FLASHMLA_SPARSE needs compute capability 9.0")
    _load(args, facts, glm5=glm5)
    server = _start(args, facts, kv, speculative)
    log("INFO:     Application startup complete.")
    server.serve()
    return 0


def _json_flag(text: str | None, flag: str) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        die(f"vllm serve: error: argument --{flag}: Value {text} cannot be converted to <function loads>.", 2)
    return value


def _kv_config(args: argparse.Namespace) -> KvConfig:
    config = _json_flag(args.kv_transfer_config, "kv-transfer-config")
    if not config:
        return KvConfig()
    parts = [config]
    if config.get("kv_connector") == "MultiConnector":
        parts = config.get("kv_connector_extra_config", {}).get("connectors", [])
        if not parts:
            die("ValueError: MultiConnector requires a non-empty list of connectors")
    for part in parts:
        _check_connector(part)
    named = {part["kv_connector"]: part for part in parts}
    tilert = named.get("TileRTConnector")
    return KvConfig(
        nixl="NixlConnector" in named,
        tilert=None if tilert is None else tilert.get("kv_connector_extra_config") or {},
        fail_on_load_error=config.get("kv_load_failure_policy", "fail") == "fail",
    )


def _check_connector(part: dict[str, Any]) -> None:
    name = part.get("kv_connector")
    role = part.get("kv_role")
    if role is None:
        die("pydantic ValidationError: Please specify kv_role when kv_connector is set, supported roles are "
            "('kv_producer', 'kv_both', 'kv_consumer')")  # fmt: skip
    if role not in ("kv_producer", "kv_consumer", "kv_both"):
        die(f"pydantic ValidationError: Unsupported kv_role: {role}. Supported roles are "
            "('kv_producer', 'kv_both', 'kv_consumer')")  # fmt: skip
    policy = part.get("kv_load_failure_policy", "fail")
    if policy not in ("fail", "recompute"):
        die(f"pydantic ValidationError: kv_load_failure_policy: Input should be 'recompute' or 'fail', got '{policy}'")
    if name not in CONNECTORS:
        die(f"ValueError: Unsupported connector type: {name}")
    if name == "NixlConnector":
        _require_nixl()
    if name == "TileRTConnector":
        _check_tilert(part)


def _require_nixl() -> None:
    if installed("nixl") is None:
        die("RuntimeError: NIXL is not available")


def _check_tilert(part: dict[str, Any]) -> None:
    module = part.get("kv_connector_module_path")
    if module is None:
        die("ValueError: Unsupported connector type: TileRTConnector")
    if module != TILERT_MODULE:
        die(f"ModuleNotFoundError: No module named '{module}'")
    require("tilert")
    extra = part.get("kv_connector_extra_config") or {}
    transport = str(extra.get("tilert_transport", "mooncake")).lower()
    if transport not in ("mooncake", "nixl"):
        die(f"ValueError: unknown transport '{transport}'; choices: ['mooncake', 'nixl']")
    require(transport_package(transport))
    device = str(extra.get("tilert_pd_buffer_device") or os.environ.get("TILERT_PD_BUFFER_DEVICE") or "cuda").lower()
    if device == "cpu" and wire.sender_ranks() > 1:
        die("RuntimeError: TILERT_PD_SENDERS>1 and a host-resident staging buffer are mutually exclusive: "
            "multi-sender exists to keep every shard on its own card")  # fmt: skip
    try:
        wire.profile_name(str(extra.get("tilert_model", "glm5")))
    except KeyError as error:
        die(f"KeyError: {error}")


def _require_hardware(args: argparse.Namespace, facts: NodeFacts) -> None:
    if no_gpu_in_container() or facts.gpu_count == 0:
        die("RuntimeError: Failed to infer device type, please set the environment variable VLLM_LOGGING_LEVEL=DEBUG")
    if major(facts.driver) < MINIMUM_DRIVER:
        die("RuntimeError: The NVIDIA driver on your system is too old (found version 12080).")
    tp = args.tensor_parallel_size
    if tp > facts.gpu_count:
        die(f"ValueError: World size ({tp}) is larger than the number of available GPUs ({facts.gpu_count}) "
            "in this node.")  # fmt: skip


def _settle_length(args: argparse.Namespace, longest: int) -> None:
    if args.max_model_len is None:
        args.max_model_len = longest
    if args.max_model_len > longest:
        die(
            f"ValueError: User-specified max_model_len ({args.max_model_len}) is greater than the derived "
            f"max_model_len (max_position_embeddings={longest}.0 or model_max_length=None in model's config.json)."
        )


def _check_model(model: str) -> bool:
    """Whether it is a GLM-5; ends the program when there is no such model."""
    local = model.startswith(("/", "."))
    if (local or "TWIN_MOUNTS" in os.environ) and not visible(f"{model}/config.json"):
        die(f"OSError: {model} is not a local folder and is not a valid model identifier listed on "
            "'https://huggingface.co/models'")  # fmt: skip
    return "glm-5" in model.lower() or (local and "GlmMoeDsa" in _architecture(model))


def _architecture(model: str) -> str:
    try:
        with open(f"{model}/config.json", encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs start-up time
            return " ".join(json.load(file).get("architectures") or ())
    except (OSError, ValueError) as error:
        die(f"OSError: It looks like the config file at '{model}/config.json' is not a valid JSON file. ({error})")


def _load(args: argparse.Namespace, facts: NodeFacts, *, glm5: bool) -> None:
    total = args.tensor_parallel_size * facts.vram_gb
    log(f"INFO [gpu_model_runner.py:5250] Starting to load model {args.model}...")
    for step in range(1, _PROGRESS_STEPS + 1):
        time.sleep(facts.load_wait / _PROGRESS_STEPS)
        if glm5 and total < GLM5_VRAM_GB and step > _PROGRESS_STEPS * total / GLM5_VRAM_GB:
            die("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity "
                f"of {facts.vram_gb:.2f} GiB of which 1.12 GiB is free.")  # fmt: skip
        log(f"Loading safetensors checkpoint shards: {100 * step // _PROGRESS_STEPS}% Completed")


def _start(args: argparse.Namespace, facts: NodeFacts, kv: KvConfig, speculative: dict[str, Any]) -> HttpServer:
    mtp = speculative.get("method") in ("mtp", "deepseek_mtp", "glm_mtp")
    if kv.tilert is not None and not mtp and not _without_mtp():
        die("RuntimeError: glm5 classify: 78 MLA layers (expected 79); check --speculative-config")
    sender = None if kv.tilert is None else _make_sender(args, facts, kv.tilert)
    app = VllmApp(
        ServerInfo(
            version=installed("vllm") or VERSION,
            model=args.model,
            served_names=tuple(args.served_model_name or (args.model,)),
            max_model_len=args.max_model_len,
            token_ids=bool(args.return_tokens_as_token_ids),
            api_key=args.api_key or os.environ.get("VLLM_API_KEY"),
            block_size=args.block_size,
            priorities=args.scheduling_policy == "priority",
            fail_on_load_error=kv.fail_on_load_error,
        ),
        Engine(
            facts.pace["prefill_tps"],
            facts.pace["native_tps"],
            batch_tokens=args.max_num_batched_tokens or 8192,
            max_seqs=args.max_num_seqs,
        ),
        sender,
        _make_nixl(args, facts, mtp=mtp) if kv.nixl else None,
    )
    host = bind_address(args.host or "", facts)
    try:
        return HttpServer(host, args.port, app.handler())
    except OSError as error:
        die(f"OSError: [Errno {error.errno}] {os.strerror(error.errno or 0)}")


def _without_mtp() -> bool:
    return (os.environ.get("TILERT_PD_NO_MTP") or "0").strip().lower() not in ("0", "false", "no", "off")


def _make_sender(args: argparse.Namespace, facts: NodeFacts, extra: dict[str, Any]) -> Sender:
    try:
        wire.local_ip(facts.address)
        dtype = "fp8_ds_mla" if args.kv_cache_dtype.startswith("fp8") else "bf16"
        layout = wire.layout_version(str(extra.get("tilert_model", "glm5")), dtype)
    except (OSError, KeyError) as error:
        die(f"{type(error).__name__}: {error}")
    return Sender(
        SenderConfig(
            layout_version=layout,
            protocol_version=1 if (installed("tilert") or "").startswith("0.1.5") else wire.PROTOCOL_VERSION,
            transport=str(extra.get("tilert_transport", "mooncake")).lower(),
            tp=args.tensor_parallel_size,
            default_port=int(extra.get("tilert_ctrl_port", 5556)),
            attempts=int(extra.get("tilert_admission_attempts", 5)),
        )
    )


def _make_nixl(args: argparse.Namespace, facts: NodeFacts, *, mtp: bool) -> NixlConnector:
    """What must be equal on both sides goes into the compatibility hash, with the versions."""
    cache = "fp8_ds_mla" if args.kv_cache_dtype.startswith("fp8") else args.kv_cache_dtype
    versions = (installed("vllm") or VERSION, installed("nixl") or "")
    model = os.path.basename(os.path.normpath(args.model))  # noqa: PTH119
    try:
        return NixlConnector(facts, "/".join((*versions, model, cache, "mtp" if mtp else "plain")))
    except OSError as error:
        die(f"zmq.error.ZMQError: {error}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
