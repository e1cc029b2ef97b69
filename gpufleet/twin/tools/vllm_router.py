"""Stand-in for the ``vllm-router`` program."""

from __future__ import annotations

import os

from gpufleet.twin import packages
from gpufleet.twin.vllm_router import main as route


def main(argv: list[str]) -> int:
    """Run the router."""
    known = packages.installed()
    os.environ["TWIN_PACKAGES"] = ",".join(f"{package}=={version}" for package, version in known.items())
    return route(argv)
