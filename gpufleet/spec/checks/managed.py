"""Arguments and variables that gpufleet sets itself: written by hand as well, one of the two would silently win."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gpufleet.domain.nodes import Role
from gpufleet.spec.model import Engine, Fleet
from gpufleet.spec.problems import Loc, Problem, Severity, looks_secret, names_a_secret, one_line

_VLLM = {
    "--model": "model.id",
    "--served-model-name": "model.served_name",
    "--revision": "model.revision",
    "--hf-token": "model.hf_token",
    "--host": None,
    "--port": None,
    "--tensor-parallel-size": "engine.tensor_parallel",
    "-tp": "engine.tensor_parallel",
    "--max-model-len": "engine.max_seq_len",
    "--kv-cache-dtype": "engine.kv_cache_dtype",
    "--gpu-memory-utilization": "engine.gpu_memory_utilization",
    "--kv-transfer-config": None,
    "--speculative-config": "engine.mtp",
    "--return-tokens-as-token-ids": None,
    "--trust-remote-code": None,
}
MANAGED_ARGS: Mapping[Role, Mapping[str, str | None]] = {
    Role.PREFILL: {**_VLLM, "--enforce-eager": None, "--scheduling-policy": "gate"},
    Role.NATIVE: _VLLM,
    Role.DECODE: {
        "--engine": None,
        "--model": "model.profile",
        "--model-weights-dir": None,
        "--with-mtp": "engine.mtp",
        "--num-mtp": "engine.mtp",
        "--max-seq-len": "engine.max_seq_len",
        "--kv-cache-dtype": "engine.kv_cache_dtype",
        "--transport": "engine.transport",
        "--ctrl-port": None,
        "--http-port": None,
    },
}
"""Flag -> the key of the fleet file that sets it; None when gpufleet works it out."""

MANAGED_ENV: Mapping[str, str | None] = {
    "TILERT_PD_SENDERS": "engine.senders",
    "TILERT_PD_SHARDS": None,
    "TILERT_PD_PROBE_ADDR": None,
    "TILERT_PD_NO_MTP": "engine.mtp",
    "TILERT_DECODE_POLL_MS": "engine.decode_poll_ms",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": None,
    "VLLM_NIXL_SIDE_CHANNEL_PORT": None,
    "UCX_NET_DEVICES": "network.devices",
    "HF_TOKEN": "model.hf_token",
    "HUGGING_FACE_HUB_TOKEN": "model.hf_token",
    "CUDA_VISIBLE_DEVICES": None,
    "NVIDIA_VISIBLE_DEVICES": None,
}
"""Variable -> the key of the fleet file that sets it; None when gpufleet works it out."""

_RDMA_TRANSPORTS = re.compile(r"(?:^|,)(?:all|ib|rc|ud|dc)(?:_|,|$)")


def check_engines(fleet: Fleet) -> Iterator[Problem]:
    """Every pool's extra_args and env."""
    for name, pool in fleet.pools.items():
        loc: Loc = ("pools", name, "engine")
        yield from _arguments(fleet.role_of(name), pool.engine, (*loc, "extra_args"))
        yield from _variables(pool.engine, (*loc, "env"))
        yield from _host_buffer(fleet, pool.engine, loc)
        yield from _tcp_only(fleet, pool.engine, loc)


def managed_flag(role: Role, argument: str) -> str | None:
    """The managed flag that an argument sets, also when it is shortened, dotted or written with underscores."""
    flag = re.split(r"[=.]", argument, maxsplit=1)[0].replace("_", "-")
    known = MANAGED_ARGS[role]
    if flag in known:
        return flag
    if len(flag) < 4 or not flag.startswith("--"):
        return None
    return next((name for name in known if name.startswith(flag)), None)


def _arguments(role: Role, engine: Engine, loc: Loc) -> Iterator[Problem]:
    for index, argument in enumerate(engine.extra_args):
        flag = argument.partition("=")[0]
        managed = managed_flag(role, argument)
        if managed:
            yield _taken(f"'{managed}' is set by gpufleet", MANAGED_ARGS[role][managed], (*loc, index))
        elif looks_secret(argument) or (flag.startswith("-") and names_a_secret(flag)):
            yield Problem(
                f"extra_args: {_flag_only(flag)} would show a secret in every process list",
                loc=(*loc, index),
                hint="keys of callers belong under router.channels",
            )


def _flag_only(flag: str) -> str:
    """The name of a flag; never a value, which may be the secret."""
    return f"'{one_line(flag)}'" if flag.startswith("--") and not looks_secret(flag) else "an argument"


def _variables(engine: Engine, loc: Loc) -> Iterator[Problem]:
    for name, value in engine.env.items():
        if name in MANAGED_ENV:
            yield _taken(f"'{name}' is set by gpufleet", MANAGED_ENV[name], (*loc, name))
        elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            yield Problem(f"env: '{one_line(name)}' is not the name of an environment variable", loc=(*loc, name))
        elif names_a_secret(name) or looks_secret(value):
            yield Problem(
                f"env: '{name}' looks like a secret, and these variables show on the node",
                loc=(*loc, name),
                hint="a Hugging Face token belongs in model.hf_token, as env:NAME or file:PATH",
            )


def _taken(message: str, key: str | None, loc: Loc) -> Problem:
    return Problem(message, loc=loc, hint=f"use {key} instead" if key else "leave it out: it follows from the rest")


def _host_buffer(fleet: Fleet, engine: Engine, loc: Loc) -> Iterator[Problem]:
    """TileRT stops at start when more than one sender stages in host memory."""
    words = " ".join((*engine.extra_args, engine.env.get("TILERT_PD_BUFFER_DEVICE", ""))).replace("=", " ").split()
    in_host = "cpu" in words and ("--pd-buffer-device" in words or "TILERT_PD_BUFFER_DEVICE" in engine.env)
    senders = engine.senders or max((fleet.pools[p].engine.tensor_parallel for p in fleet.pools), default=1)
    if in_host and senders != 1:
        yield Problem(
            f"a hand-over buffer in host memory works with one sender, and there are {senders}",
            loc=loc,
            hint="leave the buffer on the GPU",
        )


def _tcp_only(fleet: Fleet, engine: Engine, loc: Loc) -> Iterator[Problem]:
    """UCX_TLS without an RDMA transport turns RDMA off without a word."""
    chosen = engine.env.get("UCX_TLS", "all")
    if fleet.network.rdma != "off" and not chosen.startswith("^") and not _RDMA_TRANSPORTS.search(chosen):
        yield Problem(
            f"env: UCX_TLS '{one_line(chosen)}' has no RDMA transport, and network.rdma is '{fleet.network.rdma}'",
            loc=(*loc, "env", "UCX_TLS"),
            hint="add rc, leave UCX_TLS out, or set network.rdma to off",
            severity=Severity.ERROR if fleet.network.rdma == "required" else Severity.WARNING,
        )
