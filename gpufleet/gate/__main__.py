"""``python -m gpufleet.gate``, or ``python gate.pyz``."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from gpufleet.gate.config import ADMISSION_ATTEMPTS, Address, GateConfig
from gpufleet.gate.service import serve

_DEFAULTS = GateConfig(Address("", 0), Address("", 0))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="gate", description="Lets one TileRT hand-over through to vLLM at a time.")
    made.add_argument("--listen", type=Address.parse, required=True, metavar="IP:PORT")
    made.add_argument("--upstream", type=Address.parse, required=True, metavar="http://IP:PORT", help="vLLM")
    made.add_argument("--relay-host", default=_DEFAULTS.relay_host, help="where vLLM's ranks reach the gate")
    made.add_argument("--state", type=Path, help="file that exists while a hand-over runs")
    made.add_argument("--priority", type=int, help="vLLM's priority for hand-overs; lower is sooner")
    made.add_argument("--token-bytes", type=int, default=_DEFAULTS.token_bytes, help="KV bytes of a token, for metrics")
    made.add_argument("--admission-attempts", dest="attempts", type=int, default=ADMISSION_ATTEMPTS)
    for name, what in _DEADLINES.items():
        default = getattr(_DEFAULTS, f"{name}_s")
        made.add_argument(f"--{what}", dest=f"{name}_s", type=float, default=default, metavar="SECONDS")
    return made


_DEADLINES = {
    "queue": "deadline-queue", "handover": "deadline-handover", "connect": "deadline-connect", "settle": "settle",
    "quarantine": "quarantine", "drain": "drain",
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run a gate; the exit status."""
    config = GateConfig(**vars(parser().parse_args(argv)))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        asyncio.run(serve(config))
    except OSError as error:
        sys.stderr.write(f"gate: cannot listen on {config.listen}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
