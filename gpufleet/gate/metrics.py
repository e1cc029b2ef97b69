"""Counters and histograms in Prometheus' text format.

Why not prometheus_client: the gate is one file that runs on any Python, and needs no more than these two kinds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

Labels = tuple[tuple[str, str], ...]
SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_NODES = 64
"""Decode nodes told apart; a caller may name any address, so that more than these are counted together."""


class Histogram:
    """Durations in seconds, by labels."""

    def __init__(self) -> None:
        self._counts: dict[Labels, list[int]] = {}
        self._sums: Counter[Labels] = Counter()

    def observe(self, labels: Labels, seconds: float) -> None:
        """Add one duration."""
        counts = self._counts.setdefault(labels, [0] * (len(SECONDS) + 1))
        counts[bisect_left(SECONDS, seconds)] += 1
        self._sums[labels] += seconds  # type: ignore[assignment]  # Counter is typed for int alone

    def lines(self, name: str) -> Iterator[str]:
        """As Prometheus reads it."""
        yield f"# TYPE {name} histogram"
        for labels, counts in self._counts.items():
            total = 0
            for bound, count in zip((*map(str, SECONDS), "+Inf"), counts, strict=True):
                total += count
                yield f"{name}_bucket{_text((*labels, ('le', bound)))} {total}"
            yield f"{name}_sum{_text(labels)} {self._sums[labels]}"
            yield f"{name}_count{_text(labels)} {total}"


class Metrics:
    """Everything that the gate counts; gauges come from the caller of ``render``."""

    def __init__(self) -> None:
        self.queue_seconds = Histogram()
        self.handover_seconds = Histogram()
        self.handovers: Counter[Labels] = Counter()
        self.tokens: Counter[Labels] = Counter()
        self.bytes: Counter[Labels] = Counter()
        self.refusals: Counter[Labels] = Counter()
        self.requests: Counter[Labels] = Counter()
        self._nodes: set[str] = set()

    def node(self, name: str) -> tuple[str, str]:
        """The label of a decode node."""
        if name in self._nodes or len(self._nodes) < _NODES:
            self._nodes.add(name)
            return ("decode", name)
        return ("decode", "other")

    def render(self, gauges: dict[str, float]) -> str:
        """The exposition text."""
        lines: list[str] = []
        for name, value in gauges.items():
            lines += [f"# TYPE gpufleet_gate_{name} gauge", f"gpufleet_gate_{name} {value}"]
        for name in ("handovers", "tokens", "bytes", "refusals", "requests"):
            full = f"gpufleet_gate_{name}_total"
            lines.append(f"# TYPE {full} counter")
            lines += [f"{full}{_text(labels)} {count}" for labels, count in getattr(self, name).items()]
        lines += self.queue_seconds.lines("gpufleet_gate_queue_seconds")
        lines += self.handover_seconds.lines("gpufleet_gate_handover_seconds")
        return "\n".join(lines) + "\n"


def _text(labels: Labels) -> str:
    inner = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{inner}}}" if inner else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
