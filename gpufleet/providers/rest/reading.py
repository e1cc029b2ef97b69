"""Answers as offers, instances and clusters. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from gpufleet.catalog.facts import gpus
from gpufleet.domain.market import (
    ClusterTerms,
    Extra,
    ExtraKind,
    GpuShape,
    Instance,
    InstanceState,
    Offer,
    Runtime,
    SshEndpoint,
)
from gpufleet.providers.base import Cluster
from gpufleet.providers.errors import ProtocolError
from gpufleet.providers.rest.description import Clusters, Extras, InstanceShape, Offers
from gpufleet.providers.rest.expressions import BadExpression, evaluate, number
from gpufleet.providers.rest.prices import quote

Values = Mapping[str, Any]
_ENDED = {InstanceState.TERMINATED}


def read_offers(shape: Offers, rows: Sequence[Any], common: Values, *, provider: str, runtime: Runtime) -> list[Offer]:
    """Every offer of a listing that can be rented, cheapest first.

    Args:
        common: what all rows see: ``also``, ``option``, ``query``.

    Raises:
        ProtocolError: a row does not have the expected shape.
    """
    try:
        offers = [_offer(shape, row, provider=provider, runtime=runtime) for row in _rows(shape, rows, common)]
    except BadExpression as error:
        raise ProtocolError(f"{provider}: an offer does not have the expected shape: {error}") from None
    return sorted((o for o in offers if o is not None), key=lambda o: (o.usd_per_hour, o.offer_id))


def _rows(shape: Offers, rows: Sequence[Any], common: Values) -> Iterable[Values]:
    for item in rows:
        parts = evaluate(shape.each, {"item": item, **common}) if shape.each else [None]
        for each in parts if isinstance(parts, list) else []:
            values = {"item": item, "each": each, **common}
            if shape.keep is None or evaluate(shape.keep, values):
                yield values


def _offer(shape: Offers, values: Values, *, provider: str, runtime: Runtime) -> Offer | None:
    field = {name: evaluate(expression, values) for name, expression in shape.fields.items()}
    model, count = field["gpu"], _whole(field["gpu_count"])
    if not isinstance(model, str) or not count or field["offer_id"] in {None, ""}:
        return None
    price = quote(shape.price, values, gpu_count=count)
    if price is None:
        return None
    known = gpus().get(model)
    return Offer(
        provider=provider,
        offer_id=str(field["offer_id"]),
        gpu=GpuShape(model, count),
        vram_gb_per_gpu=_whole(field.get("vram_gb_per_gpu")) or (known.vram_gb if known else 0),
        usd_per_hour=price.usd_per_hour,
        region=_text(field["region"]),
        interconnect=_text(field.get("interconnect")) or "unknown",
        interconnect_gbps=_whole(field.get("interconnect_gbps")),
        ram_gb=_whole(field.get("ram_gb")),
        disk_gb=_whole(field.get("disk_gb")),
        vcpus=_whole(field.get("vcpus")),
        spot=bool(field.get("spot")),
        stock=_whole(field.get("stock")),
        boot_seconds=float(number(field.get("boot_seconds")) or shape.boot_seconds),
        min_rental_seconds=shape.min_rental_seconds,
        billing_increment_seconds=shape.billing_increment_seconds,
        price_told=price.told,
        runtime=_runtime(field.get("runtime"), runtime),
        cluster=_cluster_terms(field),
        contract_end=read_time(field.get("contract_end")),
        security=_text(field.get("security")),
        launch={name: _text(evaluate(expression, values)) for name, expression in shape.launch.items()},
    )


def read_instance(shape: InstanceShape, item: Any, option: Values, *, provider: str) -> Instance:
    """One instance.

    Raises:
        ProtocolError: it has no id or no state, or another shape.
    """
    values = {"item": item, "option": option}
    try:
        field = {name: evaluate(expression, values) for name, expression in shape.fields.items()}
        state, raw = _state(shape, item, field["state"])
        gpu = _gpu(field)
        price = quote(shape.price, values, gpu_count=gpu.count if gpu else None) if shape.price else None
        ssh = _ssh(shape, values)
        extras = _extras_of(shape, values)
    except BadExpression as error:
        raise ProtocolError(f"{provider}: an instance does not have the expected shape: {error}") from None
    if field["id"] in {None, ""} or not isinstance(item, dict):
        raise ProtocolError(f"{provider}: an instance without an id")
    return Instance(
        provider=provider,
        instance_id=str(field["id"]),
        name=_text(field["name"]),
        state=state,
        raw_state=raw,
        usd_per_hour=price.usd_per_hour if price else None,
        gpu=gpu,
        region=_text(field.get("region")),
        ssh=ssh,
        private_ip=_text(field.get("private_ip")) or None,
        host_id=_text(field.get("host_id")) or None,
        created_at=read_time(field.get("created_at")),
        ended_at=read_time(field.get("ended_at")) if state in _ENDED else None,
        message=_text(field.get("message")),
        expires_at=read_time(field.get("expires_at")),
        cluster_id=_text(field.get("cluster_id")) or None,
        rank=_whole(field.get("rank")),
        extras=extras,
    )


def read_cluster(shape: Clusters, item: Any, members: Sequence[Instance], *, provider: str) -> Cluster:
    """One cluster.

    Raises:
        ProtocolError: it has another shape.
    """
    try:
        field = {name: evaluate(expression, {"item": item}) for name, expression in shape.fields.items()}
        extras = _extras_of(shape, {"item": item})
    except BadExpression as error:
        raise ProtocolError(f"{provider}: a cluster does not have the expected shape: {error}") from None
    if field.get("id") in {None, ""}:
        raise ProtocolError(f"{provider}: a cluster without an id")
    raw = _text(field.get("state"))
    return Cluster(
        provider=provider,
        cluster_id=str(field["id"]),
        name=_text(field.get("name")),
        state=shape.states.get(raw.lower(), InstanceState.UNKNOWN),
        raw_state=raw,
        members=tuple(members),
        created_at=read_time(field.get("created_at")),
        extras=extras,
    )


def read_extras(shape: Extras, rows: Sequence[Any], *, provider: str) -> list[Extra]:
    """What is kept beside instances, the deleted left out.

    Raises:
        ProtocolError: a row has no reference, or another shape.
    """
    try:
        return [_extra(shape, row) for row in rows if shape.gone is None or not evaluate(shape.gone, row)]
    except BadExpression as error:
        raise ProtocolError(f"{provider}: a {shape.kind} does not have the expected shape: {error}") from None


def read_time(value: Any) -> datetime | None:
    """A time as ISO 8601 (UTC where it names no zone) or as Unix seconds; None for anything else."""
    if isinstance(value, str) and not value.strip().replace(".", "", 1).isdecimal():
        try:
            at = datetime.fromisoformat(value.strip())
        except ValueError:
            return None
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    seconds = number(value)
    try:
        return datetime.fromtimestamp(float(seconds), UTC) if seconds else None
    except (ValueError, OverflowError, OSError):
        return None


def _extra(shape: Extras, row: Any) -> Extra:
    ref = evaluate(shape.ref, row)
    if ref in {None, ""}:
        raise BadExpression("it has no reference")
    price = quote(shape.usd_per_hour, {"item": row}, gpu_count=None) if shape.usd_per_hour else None
    return Extra(shape.kind, str(ref), _text(evaluate(shape.name, row)), price.usd_per_hour if price else None)


def _extras_of(shape: InstanceShape | Clusters, values: Values) -> tuple[Extra, ...]:
    found = evaluate(shape.extras, values) if shape.extras else []
    rows = [row for row in found or [] if isinstance(row, dict) and row.get("ref")]
    return tuple(Extra(ExtraKind(row["kind"]), str(row["ref"]), _text(row.get("name"))) for row in rows)


def _state(shape: InstanceShape, item: Any, told: Any) -> tuple[InstanceState, str]:
    raw = "null" if told is None else str(told)
    for rule in shape.state_rules:
        if evaluate(rule.when, item):
            return rule.state, raw
    return shape.states.get(raw.lower(), InstanceState.UNKNOWN), raw


def _gpu(field: Values) -> GpuShape | None:
    model, count = field.get("gpu"), _whole(field.get("gpu_count"))
    return GpuShape(model, count) if isinstance(model, str) and count else None


def _ssh(shape: InstanceShape, values: Values) -> SshEndpoint | None:
    part = {name: evaluate(expression, values) for name, expression in shape.ssh.items()}
    host = _text(part.get("host"))
    if not host:
        return None
    user = _text(part.get("user")) or "root"
    jump_host = _text(part.get("jump_host"))
    jump = SshEndpoint(jump_host, user=_text(part.get("jump_user")) or user) if jump_host else None
    return SshEndpoint(host, _whole(part.get("port")) or 22, user, jump=jump)


def _cluster_terms(field: Values) -> ClusterTerms | None:
    least = _whole(field.get("min_nodes"))
    return ClusterTerms(least, _whole(field.get("max_nodes")) or least) if least else None


def _runtime(value: Any, default: Runtime) -> Runtime:
    return Runtime(value) if value in list(Runtime) else default


def _whole(value: Any) -> int | None:
    found = number(value)
    return None if found is None or found < 0 else int(found)


def _text(value: Any) -> str:
    return "" if value is None else str(value).strip()
