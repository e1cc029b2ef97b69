"""Where nodes come from and what they may cost."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Any

from gpufleet.spec.model import Fleet, ProviderUse
from gpufleet.spec.problems import Loc, Problem, Severity, dotted, looks_secret, names_a_secret, one_line
from gpufleet.spec.values import REFERENCE_PATTERN

_HOST_KEYS = frozenset({"host", "private_ip", "address", "hostname"})
_IPV4_OR_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


def check_providers(fleet: Fleet) -> Iterator[Problem]:
    """Options of every provider, as far as they are the same for all: hosts and secrets."""
    yield from _options(fleet.provider, ("provider",))
    for name, pool in fleet.pools.items():
        if pool.provider:
            yield from _options(pool.provider, ("pools", name, "provider"))


def check_money(fleet: Fleet) -> Iterator[Problem]:
    """Limits that contradict each other."""
    budget = fleet.budget.max_usd_per_hour
    total = fleet.budget.max_usd_total
    for name, pool in fleet.pools.items():
        if budget is not None and pool.max_usd_per_hour is not None and pool.count and pool.max_usd_per_hour > budget:
            yield Problem(
                f"pools.{name}.max_usd_per_hour: one node may cost ${pool.max_usd_per_hour}/h, more than the "
                f"whole fleet's budget of ${budget}/h",
                loc=("pools", name, "max_usd_per_hour"),
                hint="raise budget.max_usd_per_hour, or lower the pool's limit",
                severity=Severity.WARNING,
            )
    if budget is not None and total is not None and total < budget:
        yield Problem(
            f"budget.max_usd_total: ${total} is used up in less than an hour at ${budget}/h",
            loc=("budget", "max_usd_total"),
            severity=Severity.WARNING,
        )


def _options(use: ProviderUse, loc: Loc) -> Iterator[Problem]:
    for place, value in _leaves(use.options, loc):
        key = next((part for part in reversed(place) if isinstance(part, str)), "")
        if key in _HOST_KEYS or key == "hosts":
            yield from _host(key, str(value), place)
        if looks_secret(str(value)) or (names_a_secret(key) and not re.fullmatch(REFERENCE_PATTERN, str(value))):
            yield Problem(
                f"{dotted(place)}: a secret must be a reference, env:NAME or file:PATH; never write the value here",
                loc=place,
                hint="move the value into a variable or a file, and name that",
            )


def _host(key: str, value: str, loc: Loc) -> Iterator[Problem]:
    """TileRT connects to the plain text of a host; brackets, a scheme or a port make it fail at the first request."""
    plain_ipv6 = key != "private_ip" and _is_ipv6(value)
    if not plain_ipv6 and not _IPV4_OR_NAME.fullmatch(value):
        kind = "an IPv4 address or a name" if key == "private_ip" else "an IP address or a name"
        yield Problem(
            f"{dotted(loc)}: '{one_line(value)}' is not {kind}",
            loc=loc,
            hint="write 10.0.0.4: no brackets, no scheme, no user, no port (ports and users have their own keys)",
        )


def _is_ipv6(value: str) -> bool:
    try:
        return ipaddress.ip_address(value).version == 6
    except ValueError:
        return False


def _leaves(value: Any, loc: Loc) -> Iterator[tuple[Loc, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, (*loc, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, (*loc, index))
    elif value is not None:
        yield loc, value
