"""The store of converted weights: what belongs together, and that it names one set of weights for good."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpufleet.spec.model import Fleet
from gpufleet.spec.problems import Problem


def check_weights(fleet: Fleet) -> Iterator[Problem]:
    """An S3 store has both keys, a directory has none, and what is kept for good is of a revision that stays."""
    weights = fleet.weights
    s3_only = ("endpoint", "region", "access_key", "secret_key")
    given = [name for name in s3_only if getattr(weights, name)]
    in_s3 = bool(weights.store) and str(weights.store).startswith("s3://")
    if given and not in_s3:
        yield Problem(
            f"weights.{given[0]} is for an S3 store, and weights.store is {weights.store or 'not set'}",
            loc=("weights", given[0]),
            hint="set weights.store to s3://bucket/prefix, or leave this out",
        )
    for name in ("access_key", "secret_key"):
        if in_s3 and not getattr(weights, name):
            yield Problem(
                f"weights.store is in S3 and weights.{name} is missing",
                loc=("weights", "store"),
                hint=f"add '{name}:' as env:NAME or file:PATH",
            )
    if weights.store and not re.fullmatch(r"[0-9a-f]{40}", fleet.model.revision):
        yield Problem(
            f"weights.store keeps what was converted once, and model.revision '{fleet.model.revision}' moves on: "
            "decode nodes would serve other weights than prefill nodes",
            loc=("model", "revision") if "revision" in fleet.model.model_fields_set else ("weights", "store"),
            hint="set model.revision to a commit; the lock file says which one was used last",
        )
