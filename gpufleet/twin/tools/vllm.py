"""Stand-in for the ``vllm`` program: ``vllm serve MODEL ...`` and ``vllm --version``."""

from __future__ import annotations

import sys

from gpufleet.twin import packages
from gpufleet.twin.tools.python import run_module


def main(argv: list[str]) -> int:
    """Run the subcommand."""
    if argv in (["--version"], ["-v"]):
        print(packages.installed()["vllm"])
        return 0
    if argv[:1] != ["serve"]:
        given = argv[0] if argv else ""
        print(
            f"vllm: error: argument subparser: invalid choice: '{given}' (choose from chat, complete, serve, bench)",
            file=sys.stderr,
        )
        return 2
    return run_module("vllm.entrypoints.openai.api_server", argv[1:])
