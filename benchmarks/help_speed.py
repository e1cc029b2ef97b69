"""How long `gpufleet --help` takes, as a ratio to importing typer alone, which is the least any Typer program takes.

Paired: each round runs both, in turn, so that a busy machine slows both.
Usage: python benchmarks/help_speed.py [ROUNDS]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

LIMIT = 2.0
HELP = (sys.executable, "-m", "gpufleet", "--help")
BARE = (sys.executable, "-c", "import typer")


def seconds(command: tuple[str, ...]) -> float:
    """Wall time of one run."""
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main() -> int:
    """Print medians and their ratio; 1 when the ratio is above the limit."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    seconds(HELP), seconds(BARE)  # fills the caches
    pairs = [(seconds(HELP), seconds(BARE)) for _ in range(rounds)]
    helped, bare = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"gpufleet --help   {helped * 1000:6.1f} ms")
    print(f"import typer      {bare * 1000:6.1f} ms")
    print(f"ratio             {ratio:6.2f}     (limit {LIMIT}; median of {rounds} pairs)")
    return ratio > LIMIT


if __name__ == "__main__":
    sys.exit(main())
