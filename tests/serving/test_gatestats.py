"""A gate's own Prometheus text, read back."""

from __future__ import annotations

from gpufleet.domain.nodes import NodeName
from gpufleet.gate.metrics import Metrics
from gpufleet.serving.gatestats import gate_status

PREFILL, FIRST, SECOND = NodeName("prefill", 0), NodeName("decode", 0), NodeName("decode", 1)
NODES = {"10.0.2.1": FIRST, "10.0.2.2": SECOND}


def metrics() -> Metrics:
    made = Metrics()
    for seconds in (0.002, 0.002, 0.2, 4.0):
        made.queue_seconds.observe((), seconds)
    node = made.node("10.0.2.1:5556")
    made.handovers[(node, ("outcome", "landed"))] = 7
    made.handovers[(node, ("outcome", "broke-off"))] = 2
    made.handover_seconds.observe((node,), 0.9)
    made.bytes[(node,)] = 62_252_000
    made.refusals[(("reason", "queue"),)] = 3
    return made


def test_what_the_gate_counted_comes_back_by_decode_node() -> None:
    gauges = {"waiting": 2.0, "busy": 1.0, "busy_seconds": 1.5, "shut": 0.0, "quarantined_nodes": 0.0}
    status = gate_status(PREFILL, metrics().render(gauges), NODES)
    assert (status.node, status.up, status.waiting, status.busy_seconds) == (PREFILL, True, 2, 1.5)
    assert (status.queue_p50_s, status.queue_p95_s) == (0.005, 5.0)
    assert status.refusals == {"queue": 3}
    first, second = status.feeds
    assert (first.node, first.landed, first.failed, first.bytes) == (FIRST, 7, 2, 62_252_000)
    assert first.handover_p95_s == 1.0
    assert (second.node, second.landed, second.handover_p50_s) == (SECOND, 0, None)


def test_a_shut_gate_is_not_up_and_one_without_requests_has_no_times() -> None:
    status = gate_status(PREFILL, Metrics().render({"shut": 1.0, "waiting": 0.0}), {})
    assert status.up is False
    assert status.queue_p95_s is None
    assert status.refusals == {}


def test_what_is_no_gate_is_not_up() -> None:
    assert gate_status(PREFILL, "<html>", {}).up is False
