"""The commented fleet file that `gpufleet init` writes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal

SCHEMA_LINE = "# yaml-language-server: $schema=./fleet.schema.json"
_BARE = re.compile(r"[A-Za-z][A-Za-z0-9:/._-]*[A-Za-z0-9]|[a-z]")


@dataclass(frozen=True)
class Answers:
    """What `init` asks. Keys are references: ``env:NAME`` or ``file:PATH``."""

    name: str = "my-fleet"
    provider: str = "mock"
    prefill: int = 1
    """Nodes."""
    decode: int = 1
    native: int = 1
    prefill_gpu: str = "H200:8"
    """Also of native nodes."""
    decode_gpu: str = "B200:8"
    listen: str = "127.0.0.1:8080"
    chat_key: str = "env:GPUFLEET_CHAT_KEY"
    batch_key: str = "env:GPUFLEET_BATCH_KEY"
    usd_per_hour: Decimal | None = None
    """Limit of the whole fleet; None for no limit."""


def render_template(answers: Answers) -> str:
    """The text of a fleet file; whether the answers make a valid one is for `gpufleet.spec.load.parse_fleet` to say."""
    parts = [_head(answers), *_pools(answers), _router(answers), _budget(answers)]
    return "\n".join(parts)


def _head(answers: Answers) -> str:
    return f"""{SCHEMA_LINE}
# Check: gpufleet validate    Price: gpufleet plan    Start: gpufleet up    End: gpufleet down

name: {_text(answers.name)}
provider: {_text(answers.provider)}  # providers/*.yaml

model:
  id: zai-org/GLM-5.1-FP8
  served_name: glm5  # the `model` that callers name

pools:
"""


def _pools(answers: Answers) -> list[str]:
    pools = [
        ("prefill", answers.prefill, answers.prefill_gpu, "vLLM reads the prompts; one node feeds one decode node."),
        ("decode", answers.decode, answers.decode_gpu, "TileRT writes the answers; one request at a time per node."),
        ("native", answers.native, answers.prefill_gpu, "vLLM's own decode, for batch requests and overflow."),
    ]
    return [
        f"  # {comment}\n  {role}:\n    gpu: {_text(gpu)}\n    count: {count}\n"
        for role, count, gpu, comment in pools
        if count
    ]


def _router(answers: Answers) -> str:
    only_tilert = answers.decode and not answers.native
    no_native = "  without_max_tokens: tilert  # such answers end at 256 tokens\n" if only_tilert else ""
    chat = _channel("chat", "interactive", answers.chat_key, "one stream at a time per decode node")
    batch = _channel("batch", "batch", answers.batch_key, "throughput, on native nodes") if answers.native else ""
    return f"""router:
  listen: {_text(answers.listen)}  # 0.0.0.0:8443 faces the network, over TLS
{no_native}  # Keys are references, env:NAME or file:PATH; never write a key into this file.
  channels:
{chat}{batch}"""


def _channel(name: str, request_class: str, key: str, comment: str) -> str:
    return f"    {name}:\n      class: {request_class}  # {comment}\n      key: {_text(key)}\n"


def _budget(answers: Answers) -> str:
    ttl = "ttl: 8h  # every rental ends at the latest then\n"
    if answers.usd_per_hour is None:
        return f"# budget:\n#   max_usd_per_hour: 500\n#   {ttl}"
    return f"budget:\n  max_usd_per_hour: {answers.usd_per_hour:f}\n  # {ttl}"


def _text(value: str) -> str:
    """A YAML scalar; JSON's quoting is YAML's double quoting."""
    return value if _BARE.fullmatch(value) else json.dumps(value)
