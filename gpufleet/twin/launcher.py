"""Start a stand-in from a wrapper script: ``python -I -S launcher.py TOOL ARGS...``.

Run as a plain file by a bare interpreter (no site-packages), so that a stand-in starts in milliseconds.
"""

import os
import sys
from importlib import import_module

TOOLS = {
    "docker": "docker.cli",
    "df": "tools.df",
    "free": "tools.free",
    "hf": "tools.hf",
    "ibstat": "tools.ibstat",
    "ibv_devinfo": "tools.ibv_devinfo",
    "nvidia-smi": "tools.nvidia_smi",
    "pip": "tools.pip",
    "python": "tools.python",
    "vllm": "tools.vllm",
    "vllm-router": "tools.vllm_router",
}


def main() -> int:
    """Run the named tool and return its exit status."""
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120
    module = import_module(f"gpufleet.twin.{TOOLS[sys.argv[1]]}")
    try:
        status = int(module.main(sys.argv[2:]))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered has no reader
        return 141
    return status


if __name__ == "__main__":
    sys.exit(main())
