"""Whether the prefill nodes keep up with the decode nodes, and the cells with the callers."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.domain.nodes import Role
from gpufleet.spec.feeding import feeding
from gpufleet.spec.model import Fleet
from gpufleet.spec.problems import Problem, Severity
from gpufleet.spec.ratio import Ratio, per_minute, ratio_of, starving


def check_traffic(fleet: Fleet) -> Iterator[Problem]:
    """Warnings only: the times are estimates."""
    if fleet.traffic is None or not feeding(fleet):
        return
    ratio = ratio_of(fleet.traffic)
    yield from _starving(fleet, ratio)
    yield from _too_many_callers(fleet, ratio)


def _starving(fleet: Fleet, ratio: Ratio) -> Iterator[Problem]:
    hungry = starving(fleet, ratio)
    if hungry:
        node, load = max(hungry.items(), key=lambda item: item[1])
        decode = len(fleet.nodes_of(Role.DECODE))
        yield Problem(
            f"{node} feeds {load} decode nodes and keeps {ratio.decode_per_prefill} of them busy with this traffic: "
            f"{ratio.prefill:.2g} s of prefill for each {ratio.decode:.2g} s of decode",
            loc=("traffic",),
            hint=f"{-(-decode // ratio.decode_per_prefill)} prefill nodes would feed {decode} decode nodes",
            severity=Severity.WARNING,
        )


def _too_many_callers(fleet: Fleet, ratio: Ratio) -> Iterator[Problem]:
    traffic = fleet.traffic
    if traffic is None or traffic.requests_per_minute is None:
        return
    wanted, most = traffic.requests_per_minute * traffic.interactive_share, per_minute(fleet, ratio)
    if wanted > most:
        yield Problem(
            f"traffic: {wanted:.3g} interactive requests a minute, and the cells serve about {most:.3g}",
            loc=("traffic", "requests_per_minute"),
            hint="the rest waits or spills to native; add decode nodes, and prefill nodes with them",
            severity=Severity.WARNING,
        )
