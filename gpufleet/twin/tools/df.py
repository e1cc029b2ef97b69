"""Stand-in for ``df``: answers for the node's disk, and hands every other question to the real one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gpufleet.twin import checkpoint, nodefile

UNITS = {"-k": 1024, "-m": 1 << 20, "-B1": 1, "-BK": 1024, "-BM": 1 << 20, "-BG": 1 << 30, "-BGB": 10**9, "-B1K": 1024}
NAMES = {"-BK": "K", "-BM": "M", "-BG": "G", "-BGB": "GB"}
FIELDS = {"source": "Filesystem", "size": "", "used": "Used", "avail": "Avail", "pcent": "Use%", "target": "Mounted on"}


def main(argv: list[str]) -> int:
    """Print the node's disk for ``-k -P -B<unit> --output=FIELDS PATH``."""
    unit, suffix, fields, paths = 1024, "", list(FIELDS), []
    words = [word.replace("--block-size=", "-B") for word in argv]
    if "-B" in words[:-1]:
        at = words.index("-B")
        words[at : at + 2] = [f"-B{words[at + 1]}"]
    for word in words:
        if word in UNITS:
            unit, suffix = UNITS[word], NAMES.get(word, "")
        elif word.startswith("--output="):
            fields = word.removeprefix("--output=").split(",")
        elif word in ("-Pk", "-kP"):
            unit = 1024
        elif word in ("-h", "-H"):
            unit, suffix = 10**9, "G"
        elif word.startswith("-") and word not in ("-P", "--portability"):
            return _real(argv)
        elif not word.startswith("-"):
            paths.append(word)
    if not paths or not set(fields) <= set(FIELDS):
        return _real(argv)
    return _show(unit, suffix, fields, paths)


def _show(unit: int, suffix: str, fields: list[str], paths: list[str]) -> int:
    missing = [path for path in paths if not Path(path).exists()]
    for path in missing:
        print(f"df: {path}: No such file or directory", file=sys.stderr)
    if len(missing) == len(paths):
        return 1
    node = nodefile.load()
    avail = checkpoint.free_bytes(node)
    used = node.disk_bytes - avail
    row = {
        "source": "/dev/md0",
        "size": f"{node.disk_bytes // unit}{suffix}",
        "used": f"{used // unit}{suffix}",
        "avail": f"{avail // unit}{suffix}",
        "pcent": f"{min(100, used * 100 // node.disk_bytes)}%",
        "target": "/",
    }
    heads = FIELDS | {"size": f"{unit}-blocks" if not suffix else f"1{suffix}-blocks"}
    widths = [max(len(heads[field]), len(row[field])) for field in fields]
    print(" ".join(heads[field].rjust(width) for field, width in zip(fields, widths, strict=True)))
    for _ in range(len(paths) - len(missing)):
        print(" ".join(row[field].rjust(width) for field, width in zip(fields, widths, strict=True)))
    return 1 if missing else 0


def _real(argv: list[str]) -> int:
    os.execv("/usr/bin/df", ["df", *argv])  # noqa: S606
