"""What a provider reports of an instance, as columns and against the record. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from gpufleet.domain.market import Instance, SshEndpoint
from gpufleet.ledger.columns import is_money
from gpufleet.ledger.records import Rental


def reported(instance: Instance) -> dict[str, Any]:
    """Columns that a provider's report fills. None means that it did not say."""
    return {
        "state": instance.state,
        "ssh": None if instance.ssh is None else told_endpoint(instance.ssh),
        "private_ip": instance.private_ip,
        "host_id": instance.host_id,
        "meter_stopped_at": aware(instance.ended_at),
        "expires_at": aware(instance.expires_at),
        "cluster_id": instance.cluster_id,
        "rank": instance.rank,
    }


def is_news(rental: Rental | None, instance: Instance, held: Collection[tuple[str, str, str]]) -> bool:
    """Whether an instance's report says anything that is not in the record, or names an extra that is not owed."""
    if rental is None or instance.ended_at is not None:
        return True
    if any((instance.provider, extra.kind, extra.ref) not in held for extra in instance.extras):
        return True
    told = {name: value for name, value in reported(instance).items() if value is not None and name != "ssh"}
    rate, started = rate_of(instance), aware(instance.created_at)
    return (
        any(getattr(rental, name) != value for name, value in told.items())
        or (rate is not None and rate != rental.usd_per_hour)
        or (started is not None and started != rental.started_at)
        or _is_new_login(rental.ssh, instance.ssh)
    )


def _is_new_login(known: SshEndpoint | None, told: SshEndpoint | None) -> bool:
    """A pinned host key stays; everything else of an address may change."""
    if told is None or known is None:
        return told is not None
    return replace(with_pinned_jump(told, known), host_key=known.host_key or told.host_key) != known


def rate_of(instance: Instance) -> Decimal | None:
    """The price that a report tells, where it is an amount of money."""
    rate = instance.usd_per_hour
    return rate if rate is not None and is_money(rate) else None


def aware(at: datetime | None) -> datetime | None:
    """A time, where it has a zone; one without is left out rather than guessed."""
    return at if at is not None and at.tzinfo is not None else None


def told_endpoint(ssh: SshEndpoint) -> dict[str, Any]:
    """As it is kept: the host's own key stands in a column of its own."""
    told = asdict(ssh)
    del told["host_key"]
    return told


def with_pinned_jump(told: SshEndpoint, known: SshEndpoint | None) -> SshEndpoint:
    """The same way through the same host keeps the key that was pinned for it."""
    before = known.jump if known else None
    if told.jump is None or before is None or told.jump.host_key or told.jump.host != before.host:
        return told
    return replace(told, jump=replace(told.jump, host_key=before.host_key))


def endpoint_of(told: Mapping[str, Any], host_key: str | None) -> SshEndpoint:
    """An address as it was kept, with the host key of its own column."""
    jump = told.get("jump")
    return SshEndpoint(**{**told, "jump": SshEndpoint(**jump) if jump else None}, host_key=host_key)
