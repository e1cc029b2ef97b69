"""Which backend a request goes to: the part of HAProxy's frontend that reads channels and bodies. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.routing.capabilities import (
    COLLECTIONS,
    COMPLETIONS_LISTS,
    SCALARS,
    any_name_pattern,
    filled_pattern,
    not_neutral_pattern,
)
from gpufleet.routing.config import RouterConfig
from gpufleet.spec.model import RequestClass

TILERT = "tilert"
NATIVE = "native"
"""The two backends."""

BUFFER = 1 << 20
"""Bytes of a body that HAProxy can look into. Large: OpenAI's clients send ``messages`` before the parameters, and a
whole context of text is nearly a megabyte. Only pages that are written take memory, so idle streams stay small."""
_LARGEST_READ = BUFFER - (64 << 10)
"""Bodies above this may lack their end in the buffer, so their parameters are unknown."""


def priorities(cfg: RouterConfig) -> Iterator[str]:
    """HAProxy serves lower classes first; in the fleet file higher is better."""
    for channel in cfg.channels:
        if channel.priority:
            condition = f"{{ var(txn.channel) -m str {channel.name} }}"
            yield f"http-request set-priority-class int({-channel.priority}) if {condition}"


def routes(cfg: RouterConfig) -> Iterator[str]:
    """Which backend a request goes to. Only interactive requests that TileRT can serve whole go to the cells."""
    if not cfg.cells or not cfg.native:
        yield f"default_backend {TILERT if cfg.cells else NATIVE}"
        return
    interactive = [c.name for c in cfg.channels if c.request_class is RequestClass.INTERACTIVE]
    if interactive:
        yield f"acl interactive var(txn.channel) -m str {' '.join(interactive)}"
        yield from _tilert_can(cfg)
        yield from _spill(cfg)
        yield f"use_backend {TILERT} if interactive tilert_path !cannot !spill"
    yield f"default_backend {NATIVE}"


def _tilert_can(cfg: RouterConfig) -> Iterator[str]:
    """Look into the body, once it is there, for what TileRT's router would refuse or cut."""
    yield "acl chat path /v1/chat/completions"
    yield "acl completions path /v1/completions"
    yield "http-request set-var(txn.tilert) str(maybe) if interactive METH_POST chat"
    yield "http-request set-var(txn.tilert) str(maybe) if interactive METH_POST completions"
    yield "acl tilert_path var(txn.tilert) -m found"
    yield "http-request wait-for-body time 60s if tilert_path"
    yield f"acl named req.body -m reg '{any_name_pattern()}'"
    for parameter in SCALARS:
        yield f"acl has_{_acl(parameter.name)} {_query(parameter.name)} -m reg '{not_neutral_pattern(parameter)}'"
    for name in COLLECTIONS:
        yield f"acl has_{name} req.body -m reg '{filled_pattern(name)}'"
    yield f"acl greedy {_query('temperature')} -m str 0"
    yield from (_cannot(f"named has_{_acl(p.name)}{' !greedy' * p.greedy_is_fine}") for p in SCALARS)
    yield from (_cannot(f"named has_{name}") for name in COLLECTIONS)
    yield f"acl streams {_query('stream')} -m str 1"
    yield _cannot("completions streams")
    yield f"acl logprobs {_query('logprobs')} -m found"
    yield _cannot("completions logprobs")
    for name in COMPLETIONS_LISTS:
        yield f"acl list_of_{name} req.body -m reg '{filled_pattern(name)}'"
        yield _cannot(f"completions list_of_{name}")
    yield f"acl too_long_to_read req.body_size gt {_LARGEST_READ}"
    yield _cannot("too_long_to_read")
    if cfg.without_max_tokens_native:
        yield f"acl names_length {_query('max_tokens')} -m found"
        yield f"acl names_length {_query('max_completion_tokens')} -m found"
        yield _cannot("!names_length")
    yield "acl cannot var(txn.cannot) -m found"


def _cannot(condition: str) -> str:
    return f"http-request set-var(txn.cannot) str(yes) if tilert_path {condition}"


def _spill(cfg: RouterConfig) -> Iterator[str]:
    """Above this many waiting requests the next ones go native; 0 means: as soon as one would have to wait."""
    if cfg.spill_queue:
        yield f"acl spill queue({TILERT}) ge {cfg.spill_queue}"
        return
    yield f"acl spill queue({TILERT}) gt 0"
    yield f"acl spill be_conn_free({TILERT}) le 0"


def _query(name: str) -> str:
    return f"req.body,json_query('$.{name}')"


def _acl(name: str) -> str:
    return name.replace(".", "_")
