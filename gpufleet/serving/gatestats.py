"""What a KV gate tells of itself: its Prometheus text -> numbers. Pure.

Why not prometheus_client's parser: it gives samples, and what is wanted of a histogram, quantiles, is missing there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite

from gpufleet.domain.nodes import NodeName
from gpufleet.domain.status import FedStatus, GateStatus

_PREFIX = "gpufleet_gate_"
_SAMPLE = re.compile(rf"{_PREFIX}(?P<name>\w+)(?:{{(?P<labels>.*)}})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_LANDED = "landed"


@dataclass(frozen=True)
class Sample:
    """One line."""

    name: str
    labels: Mapping[str, str]
    value: float


def gate_status(node: NodeName, text: str, decode_nodes: Mapping[str, NodeName]) -> GateStatus:
    """The gate of a prefill node, from what it answered to ``/gate/metrics``.

    Args:
        decode_nodes: by private address; hand-overs to other addresses are left out of ``feeds``.
    """
    samples = list(_samples(text))
    gauges = {sample.name: sample.value for sample in samples if not sample.labels}
    return GateStatus(
        node=node,
        up=gauges.get("shut") == 0,
        waiting=int(gauges.get("waiting", 0)),
        busy_seconds=gauges.get("busy_seconds", 0.0),
        queue_p50_s=_quantile(samples, "queue_seconds", 0.5),
        queue_p95_s=_quantile(samples, "queue_seconds", 0.95),
        refusals={s.labels["reason"]: int(s.value) for s in samples if s.name == "refusals_total"},
        feeds=tuple(_fed(samples, address, decode) for address, decode in decode_nodes.items()),
    )


def _samples(text: str) -> Iterator[Sample]:
    for line in text.splitlines():
        if found := _SAMPLE.fullmatch(line):
            yield Sample(found["name"], dict(_LABEL.findall(found["labels"] or "")), float(found["value"]))


def _fed(samples: list[Sample], address: str, decode: NodeName) -> FedStatus:
    own = [sample for sample in samples if sample.labels.get("decode", "").rpartition(":")[0] == address]
    outcomes = Counter({s.labels["outcome"]: int(s.value) for s in own if s.name == "handovers_total"})
    total = {sample.name: sample.value for sample in own}
    return FedStatus(
        node=decode,
        landed=outcomes[_LANDED],
        failed=outcomes.total() - outcomes[_LANDED],
        handover_p50_s=_quantile(own, "handover_seconds", 0.5),
        handover_p95_s=_quantile(own, "handover_seconds", 0.95),
        bytes=int(total.get("bytes_total", 0)),
    )


def _quantile(samples: list[Sample], histogram: str, share: float) -> float | None:
    """Seconds within which this share of the observations lies, to the histogram's bound above; None without any.

    What is beyond the last bound is told as that bound.
    """
    buckets = sorted((float(s.labels["le"]), s.value) for s in samples if s.name == f"{histogram}_bucket")
    if not buckets or not buckets[-1][1]:
        return None
    bound = next(bound for bound, value in buckets if value >= share * buckets[-1][1])
    return bound if isfinite(bound) else buckets[-2][0]
