"""Ownership keys: the name and tag every rental carries, so that a complete listing can tell what is ours."""

from __future__ import annotations

import base64
import re
import uuid

from gpufleet.domain.nodes import NodeName

PREFIX = "gf"


def new_key(fleet: str, node: NodeName) -> str:
    """``gf-<fleet>-<pool><index>-<12 base32>``; new for every attempt, at most 50 of ``[a-z0-9-]``.

    Hyperstack allows 50 characters, the tightest of the providers looked at.
    """
    unique = base64.b32encode(uuid.uuid4().bytes)[:12].decode().lower()
    pool = re.sub(r"[^a-z0-9]", "", node.pool.lower())[:6]
    return f"{PREFIX}-{fleet}-{pool}{node.index}-{unique}"


def is_ours(key: str, fleet: str) -> bool:
    """Whether a name is a key of this fleet (and not of one whose name merely starts the same)."""
    return key.startswith(f"{PREFIX}-") and key.rsplit("-", 2)[0] == f"{PREFIX}-{fleet}"
