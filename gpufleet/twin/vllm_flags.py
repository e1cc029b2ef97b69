"""Flags of ``vllm serve`` 0.26 that the stand-in knows; any other is refused, as the real one refuses it."""

from __future__ import annotations

import argparse

KV_CACHE_DTYPES = ("auto", "bfloat16", "fp8", "fp8_ds_mla", "fp8_e4m3", "fp8_e5m2", "fp8_inc")
_SWITCHES = (
    "enforce-eager", "trust-remote-code", "return-tokens-as-token-ids", "enable-prefix-caching",
    "enable-auto-tool-choice", "enable-chunked-prefill", "enable-expert-parallel", "disable-log-requests",
    "enable-log-requests", "disable-log-stats", "async-scheduling", "disable-uvicorn-access-log",
    "enable-force-include-usage", "disable-custom-all-reduce", "skip-tokenizer-init", "enable-sleep-mode",
    "enable-prompt-tokens-details", "language-model-only",
)  # fmt: skip
_TEXTS = (
    "revision", "tokenizer", "tokenizer-mode", "quantization", "tool-call-parser", "reasoning-parser", "api-key",
    "chat-template", "chat-template-content-format", "generation-config", "override-generation-config",
    "default-chat-template-kwargs", "hf-overrides", "download-dir", "uvicorn-log-level", "root-path",
    "ssl-keyfile", "ssl-certfile", "compilation-config", "attention-backend", "distributed-executor-backend",
    "limit-mm-per-prompt", "additional-config", "model-loader-extra-config", "mm-processor-kwargs",
    "attention-config", "code-revision", "moe-backend",
)  # fmt: skip
_WHOLE = (
    "data-parallel-size", "pipeline-parallel-size", "max-num-batched-tokens", "max-logprobs", "seed",
    "swap-space", "max-parallel-loading-workers", "long-prefill-token-threshold", "max-num-partial-prefills",
    "api-server-count", "decode-context-parallel-size", "num-gpu-blocks-override",
)  # fmt: skip


class _Parser(argparse.ArgumentParser):
    """vLLM accepts underscores in flag names, too."""

    def parse_args(self, args: list[str] | None = None, namespace: None = None) -> argparse.Namespace:  # type: ignore[override]
        return super().parse_args([_dashed(arg) for arg in args or []], namespace)


def _dashed(arg: str) -> str:
    if not arg.startswith("--"):
        return arg
    name, equals, value = arg.partition("=")
    return name.replace("_", "-") + equals + value


def build_parser() -> argparse.ArgumentParser:
    """``vllm serve [model_tag] [options]``."""
    parser = _Parser(prog="vllm serve", usage="vllm serve [model_tag] [options]", allow_abbrev=False)
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--model")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--served-model-name", nargs="+")
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
    parser.add_argument("--max-model-len", type=_length)
    parser.add_argument("--gpu-memory-utilization", type=_share, default=0.9)
    parser.add_argument("--kv-cache-dtype", choices=KV_CACHE_DTYPES, default="auto")
    parser.add_argument("--speculative-config", "-sc")
    parser.add_argument("--kv-transfer-config")
    dtypes = ("auto", "half", "float16", "bfloat16", "float", "float32")
    parser.add_argument("--dtype", choices=dtypes, default="auto")
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--block-size", type=int, choices=(1, 8, 16, 32, 64, 128), default=64)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--scheduling-policy", choices=("fcfs", "priority"), default="fcfs")
    for name in _SWITCHES:
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=None)
    for name in _TEXTS:
        parser.add_argument(f"--{name}")
    for name in _WHOLE:
        parser.add_argument(f"--{name}", type=_length)
    return parser


def _length(text: str) -> int:
    """``8192`` or ``8k`` (thousand) or ``8K`` (1024), as vLLM reads sizes."""
    units = {"k": 1000, "m": 1_000_000, "K": 1024, "M": 1 << 20}
    return int(float(text[:-1]) * units[text[-1]]) if text[-1:] in units else int(text)


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"gpu_memory_utilization must be in (0, 1], got {value}")
    return value
