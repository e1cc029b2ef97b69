"""The launch commands of the five programs. Pure: typed values in, argv out; nothing is started here.

Flags, environment and ports are those that were seen working together (docs/architecture.md): TileRT's README and wheel
0.1.6.post3, vLLM 0.26.0, and a run of the whole hand-over on one GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpufleet.domain.nodes import NodeName, Role
from gpufleet.serving.agree import engine_of, max_seq_len, senders, senders_for_decode
from gpufleet.serving.connectors import native_connector, prefill_connector
from gpufleet.serving.images import role_image
from gpufleet.serving.launch import Launch
from gpufleet.serving.topology import (
    NIXL_SIDE_CHANNEL_PORT,
    TILERT_CTRL_PORT,
    TILERT_HTTP_PORT,
    VLLM_NATIVE_PORT,
    VLLM_PREFILL_PORT,
    Cell,
    Topology,
    native_router_port,
)
from gpufleet.spec.model import Engine, Fleet

_ROUTER_DEADLINE_S = 600
_METRICS_ABOVE = 1000
"""A vllm-router's own metrics are this many ports above its port; two of them would share its default."""
_WORKER_STARTUP_S = 3600
"""GLM-5.1 takes longer to load than vllm-router's 600 s."""
_PD_QUEUE_S = 1800
"""A second request (while the front router reloads, for example) waits at the pd_router; its default is to refuse."""


@dataclass(frozen=True)
class Paths:
    """Where the weights lie on a node; the same path inside containers."""

    model_dir: str
    """The Hugging Face checkpoint and its tokenizer."""
    converted_dir: str
    """The same weights as TileRT reads them."""


def container_name(fleet: Fleet, what: str) -> str:
    """``gf-<fleet>-<what>``."""
    return f"gf-{fleet.name}-{what}"


def decode_launch(fleet: Fleet, topology: Topology, node: NodeName, paths: Paths) -> Launch:
    """TileRT's decode server. It has no ``--host``: it listens on every interface, IPv6 included.

    The probe address is its own: TileRT takes the source address towards it for its own, and so a node's launch does
    not depend on who feeds it.
    """
    engine = engine_of(fleet, node)
    count = str(senders_for_decode(fleet, node))
    argv = (
        *("python3", "-m", "tilert.pd_vllm.decode_server", "--engine", "tilert", "--model", fleet.model.profile),
        *("--model-weights-dir", paths.converted_dir),
        *(("--with-mtp",) if engine.mtp else ()),
        *("--max-seq-len", str(max_seq_len(fleet, engine)), "--kv-cache-dtype", engine.kv_cache_dtype),
        *("--transport", engine.transport),
        *("--ctrl-port", str(TILERT_CTRL_PORT), "--http-port", str(TILERT_HTTP_PORT)),
        *engine.extra_args,
    )
    env = {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "TILERT_PD_SENDERS": count,
        "TILERT_PD_SHARDS": count,
        "TILERT_DECODE_POLL_MS": str(engine.decode_poll_ms),
        "TILERT_PD_PROBE_ADDR": topology.addresses[node],
        **({} if engine.mtp else {"TILERT_PD_NO_MTP": "1"}),
    }
    return Launch(
        name=container_name(fleet, node.slug),
        image=role_image(fleet, Role.DECODE).tag,
        argv=argv,
        health_url=_health(topology.addresses[node], TILERT_HTTP_PORT),
        env=_env(fleet, engine, env),
        mounts=(paths.converted_dir,),
        keep_entrypoint=True,
    )


def prefill_launch(fleet: Fleet, topology: Topology, node: NodeName, paths: Paths) -> Launch:
    """vLLM that computes prompts and hands their KV cache to TileRT, to native vLLM, or to both.

    Eager mode because the connector's per-layer hooks are Python; token ids instead of texts because pd_router passes
    the first token on by its id.
    """
    engine = engine_of(fleet, node)
    count = str(senders(engine))
    env = {
        "TILERT_PD_SENDERS": count,
        "TILERT_PD_SHARDS": count,
        "TILERT_PD_PIPELINE": "1",
        "TILERT_PD_EAGER_INIT": "1",
        "TILERT_PD_PROBE_ADDR": topology.addresses[node],
        **({} if engine.mtp else {"TILERT_PD_NO_MTP": "1"}),
    }
    connector = prefill_connector(fleet, node)
    priority = ("--scheduling-policy", "priority") if fleet.pools[node.pool].gate else ()
    return _vllm(
        fleet,
        topology,
        node,
        paths,
        port=VLLM_PREFILL_PORT,
        role_args=("--enforce-eager", *priority),
        connector=connector,
        role_env=env,
    )


def native_launch(fleet: Fleet, topology: Topology, node: NodeName, paths: Paths) -> Launch:
    """vLLM's own decode: many requests at a time."""
    return _vllm(
        fleet,
        topology,
        node,
        paths,
        port=VLLM_NATIVE_PORT,
        role_args=(),
        connector=native_connector(),
        role_env={},
    )


def pd_router_launch(fleet: Fleet, cell: Cell, paths: Paths) -> Launch:
    """TileRT's router of one cell, on the cell's prefill node, in the vLLM image (its parser needs vLLM)."""
    argv = (
        *("python3", "-m", "tilert.pd_vllm.pd_router"),
        *("--vllm-url", f"http://{cell.prefill_ip}:{cell.vllm_port}"),
        *("--decode", f"{cell.decode_ip}:{TILERT_CTRL_PORT}:{TILERT_HTTP_PORT}"),
        *("--model-path", paths.model_dir, "--parser", "glm47", "--model", fleet.model.profile),
        *("--host", cell.prefill_ip, "--port", str(cell.port)),
        *("--queue-timeout", str(_PD_QUEUE_S)),
    )
    return Launch(
        name=pd_router_name(fleet, cell.decode),
        image=role_image(fleet, Role.PREFILL).tag,
        argv=argv,
        health_url=_health(cell.prefill_ip, cell.port),
        env={"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
        mounts=(paths.model_dir,),
        gpus=False,
        deadline_seconds=_ROUTER_DEADLINE_S,
    )


def pd_router_name(fleet: Fleet, decode: NodeName) -> str:
    """What the pd_router of a decode node is called, on whichever prefill node it runs."""
    return container_name(fleet, f"router-{decode.slug}")


def vllm_router_port(fleet: Fleet, topology: Topology) -> int:
    """Where the vllm-router of these nodes listens, on the first native one."""
    return native_router_port(topology, role_image(fleet, Role.NATIVE).tag)


def vllm_router_prefix(fleet: Fleet) -> str:
    """What the names of this fleet's vllm-routers begin with; the port follows."""
    return f"{container_name(fleet, 'vllm-router')}-"


def vllm_router_launch(fleet: Fleet, topology: Topology, paths: Paths) -> Launch:
    """The proxy of the native path, on the first native node; it spreads over all prefill and native nodes.

    Its name has its port, so that it can run beside the one that it follows.

    Its own retries are off: a request whose KV cache is on its way must not be computed a second time behind our back.

    Raises:
        ValueError: the fleet has no native node.
    """
    host = topology.native_router
    if host is None:
        raise ValueError("a fleet without native nodes has no vllm-router")
    address, port = topology.addresses[host], vllm_router_port(fleet, topology)
    prefill = (f"http://{topology.addresses[n]}:{VLLM_PREFILL_PORT}" for n in topology.prefill)
    decode = (f"http://{topology.addresses[n]}:{VLLM_NATIVE_PORT}" for n in topology.native)
    argv = (
        *("vllm-router", "--vllm-pd-disaggregation", "--kv-connector", "nixl", "--policy", "round_robin"),
        *(word for url in prefill for word in ("--prefill", url)),
        *(word for url in decode for word in ("--decode", url)),
        *("--host", address, "--port", str(port), "--prometheus-port", str(port + _METRICS_ABOVE)),
        *("--worker-startup-timeout-secs", str(_WORKER_STARTUP_S), "--request-timeout-secs", "3600"),
        *("--health-check-interval-secs", "10", "--disable-retries"),
    )
    return Launch(
        name=f"{vllm_router_prefix(fleet)}{port}",
        image=role_image(fleet, Role.NATIVE).tag,
        argv=argv,
        health_url=_health(address, port),
        env={"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
        mounts=(paths.model_dir,),
        gpus=False,
        deadline_seconds=_ROUTER_DEADLINE_S,
    )


def _vllm(
    fleet: Fleet,
    topology: Topology,
    node: NodeName,
    paths: Paths,
    *,
    port: int,
    role_args: tuple[str, ...],
    connector: str | None,
    role_env: dict[str, str],
) -> Launch:
    """What prefill and native share; the KV cache's type, MTP and the model must be equal on both for NIXL."""
    engine = engine_of(fleet, node)
    address = topology.addresses[node]
    mtp = ("--speculative-config", '{"method":"mtp","num_speculative_tokens":1}') if engine.mtp else ()
    argv = (
        *("vllm", "serve", paths.model_dir, "--served-model-name", fleet.model.served_name),
        *("--host", address, "--port", str(port), "--tensor-parallel-size", str(engine.tensor_parallel)),
        *("--max-model-len", str(max_seq_len(fleet, engine)), "--trust-remote-code", "--return-tokens-as-token-ids"),
        *("--gpu-memory-utilization", str(engine.gpu_memory_utilization)),
        *("--kv-cache-dtype", "fp8_ds_mla" if engine.kv_cache_dtype == "fp8" else "auto"),
        *mtp,
        *role_args,
        *(("--kv-transfer-config", connector) if connector else ()),
        *engine.extra_args,
    )
    env = {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": address,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(NIXL_SIDE_CHANNEL_PORT),
        "VLLM_ENGINE_READY_TIMEOUT_S": "3600",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        **role_env,
    }
    return Launch(
        name=container_name(fleet, node.slug),
        image=role_image(fleet, fleet.role_of(node.pool)).tag,
        argv=argv,
        health_url=_health(address, port),
        env=_env(fleet, engine, env),
        mounts=(paths.model_dir,),
    )


def _env(fleet: Fleet, engine: Engine, env: dict[str, str]) -> dict[str, str]:
    """The role's environment, the fabric's devices when the fleet names them, and what the user sets last."""
    devices = {"UCX_NET_DEVICES": fleet.network.devices} if fleet.network.devices else {}
    return {**env, **devices, **engine.env}


def _health(host: str, port: int) -> str:
    return f"http://{host}:{port}/health"
