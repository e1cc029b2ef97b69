"""What a fleet file can be told wrong about before anything is rented: pure, no network, no clock."""

from __future__ import annotations

from gpufleet.spec.checks.agree import check_agreement
from gpufleet.spec.checks.front import check_router
from gpufleet.spec.checks.managed import check_engines
from gpufleet.spec.checks.pools import check_pools, check_roles
from gpufleet.spec.checks.rental import check_money, check_providers
from gpufleet.spec.checks.schedule import check_schedule
from gpufleet.spec.checks.sizing import check_model, check_sizes
from gpufleet.spec.checks.traffic import check_traffic
from gpufleet.spec.checks.weights import check_weights
from gpufleet.spec.model import Fleet
from gpufleet.spec.problems import Problem

__all__ = ["check_counts", "check_fleet"]

_OF_COUNTS = (check_pools, check_router)


def check_fleet(fleet: Fleet) -> list[Problem]:
    """Everything that needs several fields or the catalog; empty when nothing is wrong."""
    roleless = check_roles(fleet)
    if roleless:
        return roleless
    checks = (
        *_OF_COUNTS,
        check_model,
        check_sizes,
        check_agreement,
        check_engines,
        check_providers,
        check_money,
        check_traffic,
        check_weights,
    )
    found = [problem for check in checks for problem in check(fleet)]
    return [*found, *check_schedule(fleet, _OF_COUNTS)]


def check_counts(fleet: Fleet) -> list[Problem]:
    """What depends on how many nodes there are; for counts that the file did not ask for."""
    return [problem for check in _OF_COUNTS for problem in check(fleet)]
