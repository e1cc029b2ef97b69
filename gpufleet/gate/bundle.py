"""The gate as one file that any Python 3.11 or newer runs: for nodes where gpufleet is not installed."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

_START = "import sys\nfrom gpufleet.gate.__main__ import main\nsys.exit(main())\n"
_EPOCH = (2020, 1, 1, 0, 0, 0)
"""A fixed time, so that the same source makes the same bytes and a step's hash does not change."""


def bundle() -> bytes:
    """A zipapp: ``python gate.pyz --listen ... --upstream ...``."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, "__main__.py", _START)
        _add(archive, "gpufleet/__init__.py", "")
        for source in sorted(Path(__file__).parent.glob("*.py")):
            _add(archive, f"gpufleet/gate/{source.name}", source.read_text())
    return b"#!/usr/bin/env python3\n" + out.getvalue()


def _add(archive: zipfile.ZipFile, name: str, text: str) -> None:
    archive.writestr(zipfile.ZipInfo(name, _EPOCH), text, zipfile.ZIP_DEFLATED)
