"""Which paths a program sees: all on the machine itself, inside a container only what is mounted."""

from __future__ import annotations

import os
from pathlib import Path


def visible(path: str) -> bool:
    """Whether the path lies under a mount (``TWIN_MOUNTS``); always true outside a container."""
    return "TWIN_MOUNTS" not in os.environ or _under(path, os.environ["TWIN_MOUNTS"])


def read_only(path: str) -> bool:
    """Whether the path lies under a mount that was given with ``ro``."""
    return _under(path, os.environ.get("TWIN_MOUNTS_RO", ""))


def _under(path: str, mounts: str) -> bool:
    absolute = Path(path).absolute()
    return any(absolute.is_relative_to(mount) for mount in mounts.split(":") if mount)
