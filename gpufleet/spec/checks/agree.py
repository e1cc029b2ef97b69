"""Settings that two ends of a hand-over must share; a mismatch fails no start, it hangs the first request for 120 s."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.domain.nodes import Role
from gpufleet.spec.model import Engine, Fleet
from gpufleet.spec.problems import Loc, Problem, Severity


def check_agreement(fleet: Fleet) -> Iterator[Problem]:
    """Each prefill pool with each decode and native pool that it may feed."""
    yield from _alone(fleet)
    for prefill in _used(fleet, Role.PREFILL):
        for decode in _used(fleet, Role.DECODE):
            yield from _pair(fleet, prefill, decode, ("kv_cache_dtype", "transport", "mtp"))
            yield from _senders(fleet, prefill, decode)
            yield from _lengths(fleet, prefill, decode)
        for native in _used(fleet, Role.NATIVE):
            yield from _pair(fleet, prefill, native, ("kv_cache_dtype", "mtp"))
            yield from _parallel(fleet, prefill, native)
            yield from _lengths(fleet, prefill, native)


def _alone(fleet: Fleet) -> Iterator[Problem]:
    """What a pool's own settings rule out."""
    for name in fleet.pools:
        if fleet.pools[name].count:
            yield from _mtp_is_on(fleet, name)
            yield from _rdma_for_mooncake(fleet, name)
    for name in _used(fleet, Role.PREFILL):
        yield from _senders_are_ranks(fleet, name)
    for name in _used(fleet, Role.DECODE):
        yield from _all_devices(fleet, name)


def _mtp_is_on(fleet: Fleet, name: str) -> Iterator[Problem]:
    if not fleet.model.stand_in and not _engine(fleet, name).mtp:
        yield Problem(
            f"pools.{name}.engine.mtp: off, and {fleet.model.profile} needs it on every role",
            loc=_at(name, "mtp"),
            hint="leave it out, or set it to true",
        )


def _rdma_for_mooncake(fleet: Fleet, name: str) -> Iterator[Problem]:
    rdma = fleet.network.rdma
    if _engine(fleet, name).transport == "mooncake" and rdma != "required" and fleet.role_of(name) is not Role.NATIVE:
        yield Problem(
            f"pools.{name}.engine.transport: mooncake works over RDMA only, and network.rdma is '{rdma}'",
            loc=_at(name, "transport"),
            hint="set network.rdma to required, or transport to nixl",
            severity=Severity.ERROR if rdma == "off" else Severity.WARNING,
        )


def _senders_are_ranks(fleet: Fleet, name: str) -> Iterator[Problem]:
    engine = _engine(fleet, name)
    if engine.senders not in {None, engine.tensor_parallel}:
        yield Problem(
            f"pools.{name}.engine.senders: {engine.senders} is not tensor_parallel {engine.tensor_parallel}: "
            "every rank sends its share, so requests would hang",
            loc=_at(name, "senders"),
            hint="leave senders out: it follows tensor_parallel",
        )


def _all_devices(fleet: Fleet, name: str) -> Iterator[Problem]:
    pool = fleet.pools[name]
    written = "tensor_parallel" in pool.engine.model_fields_set
    if written and not fleet.model.stand_in and pool.engine.tensor_parallel != pool.gpu.count:
        yield Problem(
            f"pools.{name}.engine.tensor_parallel: {pool.engine.tensor_parallel}, and TileRT uses all of {pool.gpu}",
            loc=_at(name, "tensor_parallel"),
            hint="leave it out",
        )


def _pair(fleet: Fleet, prefill: str, other: str, keys: tuple[str, ...]) -> Iterator[Problem]:
    """Settings that must be equal."""
    for key in keys:
        theirs, ours = getattr(_engine(fleet, prefill), key), getattr(_engine(fleet, other), key)
        if theirs != ours:
            yield Problem(
                f"pools.{other}.engine.{key} is {_text(ours)}, and pools.{prefill}.engine.{key} is {_text(theirs)}: "
                "both ends of a hand-over must agree",
                loc=_written(fleet, key, other, prefill),
                hint=f"set {key} on both, or leave it out on both",
            )


def _senders(fleet: Fleet, prefill: str, decode: str) -> Iterator[Problem]:
    ranks, senders = _engine(fleet, prefill).tensor_parallel, _engine(fleet, decode).senders
    if senders not in {None, ranks}:
        yield Problem(
            f"pools.{decode}.engine.senders: {senders}, and pools.{prefill} sends from {ranks} ranks (tensor_parallel)",
            loc=_at(decode, "senders"),
            hint="leave senders out: it follows the prefill's tensor_parallel",
        )


def _parallel(fleet: Fleet, prefill: str, native: str) -> Iterator[Problem]:
    """vLLM's NIXL connector stops with a KeyError when prefill has more ranks than decode (vllm issue 43523)."""
    theirs, ours = _engine(fleet, prefill).tensor_parallel, _engine(fleet, native).tensor_parallel
    if theirs != ours:
        yield Problem(
            f"pools.{native}.engine.tensor_parallel is {ours}, and pools.{prefill}.engine.tensor_parallel is {theirs}: "
            "vLLM hands KV over between equal ones only",
            loc=_written(fleet, "tensor_parallel", native, prefill),
            hint="set tensor_parallel to the same on both",
        )


def _lengths(fleet: Fleet, prefill: str, other: str) -> Iterator[Problem]:
    theirs, ours = (_engine(fleet, name).max_seq_len or fleet.model.max_seq_len for name in (prefill, other))
    if ours < theirs:
        yield Problem(
            f"pools.{other}.engine.max_seq_len is {ours}, less than the {theirs} of pools.{prefill}: "
            "longer prompts would hang",
            loc=_written(fleet, "max_seq_len", other, prefill),
            hint="set model.max_seq_len for every role, and leave it out here",
        )


def _used(fleet: Fleet, role: Role) -> list[str]:
    return [name for name in fleet.pools_of(role) if fleet.pools[name].count]


def _engine(fleet: Fleet, pool: str) -> Engine:
    return fleet.pools[pool].engine


def _written(fleet: Fleet, key: str, first: str, second: str) -> Loc:
    """The pool that sets the key in the file; the other one has the default."""
    return _at(first if key in _engine(fleet, first).model_fields_set else second, key)


def _at(pool: str, key: str) -> Loc:
    return ("pools", pool, "engine", key)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
