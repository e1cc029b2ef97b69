"""Ownership keys: the name and tag every rental carries, so that a complete listing can tell what is ours."""

from __future__ import annotations

import base64
import re
import uuid
from dataclasses import dataclass

from gpufleet.domain.nodes import NodeName

PREFIX = "gf"
_KEY = re.compile(rf"{PREFIX}-(?P<fleet>[a-z0-9-]+)-(?P<node>[a-z0-9]*\d)-(?P<owner>[a-z2-7]{{4}})[a-z2-7]{{8}}")


@dataclass(frozen=True)
class Key:
    """What a key says."""

    fleet: str
    node: str
    """The pool's first letters and digits (six at most) and the index: ``decode0``."""
    owner: str
    """`Store.owner_id` of the ledger that it was made with."""

    def may_be(self, node: NodeName) -> bool:
        """Whether the key can have been made for this node; two pools may share their first letters."""
        return self.node == _short(node)


def new_key(fleet: str, node: NodeName, owner: str) -> str:
    """``gf-<fleet>-<pool><index>-<owner: 4><random: 8>``; new for every attempt, at most 50 of ``[a-z0-9-]``.

    Hyperstack allows 50 characters, the tightest of the providers looked at.
    """
    unique = base64.b32encode(uuid.uuid4().bytes)[:8].decode().lower()
    return f"{PREFIX}-{fleet}-{_short(node)}-{owner}{unique}"


def parse_key(name: str) -> Key | None:
    """What a name says, or None when it has not the shape of a key."""
    found = _KEY.fullmatch(name)
    if found is None:
        return None
    return Key(found["fleet"], found["node"], found["owner"])


def is_ours(key: str, fleet: str) -> bool:
    """Whether a name is a key of this fleet (and not of one whose name merely starts the same)."""
    return key.startswith(f"{PREFIX}-") and key.rsplit("-", 2)[0] == f"{PREFIX}-{fleet}"


def _short(node: NodeName) -> str:
    return re.sub(r"[^a-z0-9]", "", node.pool.lower())[:6] + str(node.index)
