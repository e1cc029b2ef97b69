"""``python -m gpufleet``."""

from gpufleet.cli.main import run

run()
