"""How long bringing a node up, and a request, are expected to take. Sources in `timings.yaml`."""

from __future__ import annotations

from collections.abc import Mapping

from gpufleet.catalog.facts import read_table
from gpufleet.domain.nodes import Role


def phase_seconds(role: Role, *, first_decode: bool) -> Mapping[str, float]:
    """Expected seconds per phase in the order they run, boot excluded; their sum is the time to ready after boot.

    A decode node that is not the first copies the converted weights, so its ``weights`` holds the wait for the first.
    """
    weights = {"weights": _seconds("download")}
    if role is Role.DECODE and first_decode:
        weights["convert"] = _seconds("convert")
    elif role is Role.DECODE:
        weights["weights"] += _seconds("convert") + _seconds("copy")
    phases = {"check": _seconds("check"), "image": _seconds("image"), **weights, "serve": _seconds("serve")}
    return phases if role is Role.NATIVE else {**phases, "cell": _seconds("cell")}


def prefill_seconds(prompt_tokens: int) -> float:
    """Of a prefill node's time, for one prompt."""
    return prompt_tokens / _per_second("prefill_tokens")


def handover_seconds() -> float:
    """From the end of a prompt's computation until its KV cache has landed."""
    return _seconds("handover")


def decode_seconds(answer_tokens: int) -> float:
    """Of a TileRT node's time, for one answer."""
    return answer_tokens / _per_second("decode_tokens")


def _per_second(what: str) -> float:
    return float(read_table("timings.yaml")[what]["per_second"])


def _seconds(phase: str) -> float:
    return float(read_table("timings.yaml")[phase]["seconds"])
