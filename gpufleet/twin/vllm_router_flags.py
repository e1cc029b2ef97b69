"""Flags of vllm-router 0.1.17."""

from __future__ import annotations

import argparse

POLICIES = (
    "random", "round_robin", "cache_aware", "kv_aware", "power_of_two", "consistent_hash", "sticky_least_loaded",
)  # fmt: skip
_WHOLE = {
    "worker-startup-timeout-secs": 600, "worker-startup-check-interval": 30, "eviction-interval-secs": 120,
    "max-tree-size": 33554432, "max-payload-size": 536870912, "intra-node-data-parallel-size": 1,
    "request-timeout-secs": 1800, "retry-max-retries": 5, "retry-initial-backoff-ms": 50,
    "retry-max-backoff-ms": 30000, "cb-failure-threshold": 10, "cb-success-threshold": 3,
    "cb-timeout-duration-secs": 60, "cb-window-duration-secs": 120, "health-failure-threshold": 3,
    "health-success-threshold": 2, "health-check-timeout-secs": 5, "health-check-interval-secs": 60,
    "max-concurrent-requests": 32768, "queue-size": 100, "queue-timeout-secs": 60, "prometheus-port": 29000,
    "balance-abs-threshold": 64, "rate-limit-tokens-per-second": None,
}  # fmt: skip
_DECIMAL = {
    "cache-threshold": 0.3, "balance-rel-threshold": 1.5, "retry-backoff-multiplier": 1.5,
    "retry-jitter-factor": 0.2, "router-temperature": 0.0,
}  # fmt: skip
_SWITCHES = (
    "disable-retries", "disable-circuit-breaker", "enable-igw", "mini-lb", "service-discovery",
    "enable-program-scheduling",
)  # fmt: skip


def build_parser() -> argparse.ArgumentParser:
    """The launcher's parser."""
    parser = argparse.ArgumentParser(prog="vllm-router")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--worker-urls", nargs="*", default=[])
    parser.add_argument("--policy", choices=POLICIES, default="cache_aware")
    parser.add_argument("--prefill-policy", choices=POLICIES)
    parser.add_argument("--decode-policy", choices=POLICIES)
    parser.add_argument("--vllm-pd-disaggregation", action="store_true")
    parser.add_argument("--prefill", nargs="+", action="append")
    parser.add_argument("--decode", action="append", metavar="URL")
    parser.add_argument("--kv-connector", choices=("nixl", "mooncake", "moriio"), default="nixl")
    parser.add_argument("--prometheus-host", default="127.0.0.1")
    parser.add_argument("--health-check-endpoint", default="/health")
    levels = ("debug", "info", "warning", "error", "critical")
    parser.add_argument("--log-level", choices=levels, default="info")
    parser.add_argument("--log-dir")
    parser.add_argument("--api-key")
    parser.add_argument("--request-id-headers", nargs="*")
    parser.add_argument("--cors-allowed-origins", nargs="*", default=[])
    for name, whole in _WHOLE.items():
        parser.add_argument(f"--{name}", type=int, default=whole)
    for name, decimal in _DECIMAL.items():
        parser.add_argument(f"--{name}", type=float, default=decimal)
    for name in _SWITCHES:
        parser.add_argument(f"--{name}", action="store_true")
    return parser
