"""Model and hardware against the catalog."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpufleet.catalog.facts import gpus, model, models, refused_models
from gpufleet.catalog.sizing import check_shape, needs, shape_warning, shapes_that_fit
from gpufleet.domain.nodes import Role
from gpufleet.spec.model import Fleet, Pool
from gpufleet.spec.problems import Problem, Severity, did_you_mean


def check_model(fleet: Fleet) -> Iterator[Problem]:
    """The model and the versions that can serve it."""
    if fleet.model.stand_in:
        return
    yield from _model_is_known(fleet.model.id)
    facts = model(fleet.model.id)
    if fleet.model.max_seq_len > facts.max_seq_len:
        yield Problem(
            f"model.max_seq_len: {fleet.model.max_seq_len} is more than the {facts.max_seq_len} tokens of {facts.id}",
            loc=("model", "max_seq_len"),
            hint=f"at most {facts.max_seq_len}",
        )
    for name, least in (("vllm", facts.min_vllm), ("transformers", facts.min_transformers)):
        given = getattr(fleet.versions, name)
        if _numbers(given) and _numbers(given) < _numbers(least):
            yield Problem(
                f"versions.{name}: '{given}' is older than {least}, the first that serves {facts.id}",
                loc=("versions", name),
                hint=f"at least {least}",
            )
    yield from _image_matches(fleet)


def check_sizes(fleet: Fleet) -> Iterator[Problem]:
    """Every pool's shape, disk and sequence length."""
    if fleet.model.stand_in:
        return
    for name, pool in fleet.pools.items():
        yield from _shape(fleet, name, pool)
        yield from _disk(fleet, name, pool)
        yield from _length(fleet, name, pool)


def _model_is_known(model_id: str) -> Iterator[Problem]:
    loc = ("model", "id")
    if model_id in refused_models():
        yield Problem(
            f"model.id: '{model_id}' cannot be served: {refused_models()[model_id]}",
            loc=loc,
            hint=f"served: {', '.join(models())}",
        )
    elif model_id not in models():
        yield Problem(
            f"model.id: '{model_id}' is not in the catalog; sizes are taken from {model(model_id).id}"
            + did_you_mean(model_id, models()),
            loc=loc,
            hint=f"known: {', '.join(models())}",
            severity=Severity.WARNING,
        )


def _image_matches(fleet: Fleet) -> Iterator[Problem]:
    """A tag that names another vLLM than `versions.vllm`: flags and the wheel would be chosen for the wrong one."""
    tag = re.search(r":v?([0-9]+\.[0-9]+\.[0-9]+)[^/:@]*(?:@|$)", fleet.versions.vllm_image)
    if tag and _numbers(tag[1]) != _numbers(fleet.versions.vllm):
        yield Problem(
            f"versions.vllm_image: '{fleet.versions.vllm_image}' is tagged {tag[1]}, and versions.vllm is "
            f"{fleet.versions.vllm}",
            loc=("versions", "vllm_image"),
            hint="set both to the same version",
        )


def _shape(fleet: Fleet, name: str, pool: Pool) -> Iterator[Problem]:
    role, loc = fleet.role_of(name), ("pools", name, "gpu")
    fits = ", ".join(str(shape) for shape in shapes_that_fit(fleet.model.id, role))
    if pool.gpu.model not in gpus():
        guess = did_you_mean(pool.gpu.model, gpus())
        yield Problem(
            f"pools.{name}.gpu: '{pool.gpu}' is not a known GPU{guess}", loc=loc, hint=f"known: {', '.join(gpus())}"
        )
        return
    reason = check_shape(fleet.model.id, role, pool.gpu, pool.engine.tensor_parallel)
    if reason:
        yield Problem(f"pools.{name}.gpu: '{pool.gpu}' does not fit: {reason}", loc=loc, hint=f"fits {role}: {fits}")
        return
    warning = shape_warning(fleet.model.id, role, pool.gpu)
    if warning:
        yield Problem(f"pools.{name}.gpu: {warning}", loc=loc, hint=f"supported: {fits}", severity=Severity.WARNING)


def _disk(fleet: Fleet, name: str, pool: Pool) -> Iterator[Problem]:
    role = fleet.role_of(name)
    least = needs(fleet.model.id, role).disk_gb
    if pool.disk_gb is not None and pool.disk_gb < least:
        why = "checkpoint and converted weights" if role is Role.DECODE else "the checkpoint"
        yield Problem(
            f"pools.{name}.disk_gb: {pool.disk_gb} GB is too small: a {role} node needs {least} GB for {why}",
            loc=("pools", name, "disk_gb"),
            hint=f"at least {least}, or leave it out",
        )


def _length(fleet: Fleet, name: str, pool: Pool) -> Iterator[Problem]:
    longest = model(fleet.model.id).max_seq_len
    if (pool.engine.max_seq_len or 0) > longest:
        yield Problem(
            f"pools.{name}.engine.max_seq_len: {pool.engine.max_seq_len} is more than the model's {longest} tokens",
            loc=("pools", name, "engine", "max_seq_len"),
            hint=f"at most {longest}",
        )


def _numbers(version: str) -> tuple[int, ...]:
    """``0.26.0`` -> (0, 26, 0); empty for what is no release number."""
    match = re.match(r"v?([0-9]{1,6}(?:\.[0-9]{1,6})*)", version)
    return tuple(int(part) for part in match[1].split(".")) if match else ()
