"""Files that `init` makes: created, never overwritten."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from gpufleet.errors import InvalidFleet

SCHEMA_FILE = "fleet.schema.json"


def create(path: Path, text: str, *, mode: int) -> None:
    """Create a file with these permissions from its first byte on.

    Raises:
        InvalidFleet: when it exists or the folder cannot be written to.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        raise InvalidFleet(f"cannot write: {(error.strerror or '').lower()}", where=str(path)) from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def new_key(path: Path) -> list[Path]:
    """Create a random API key that only the user can read; one that is there stays.

    Its folder is closed to others and to git.

    Returns:
        What was written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists():
        return []
    ignore = path.parent / ".gitignore"
    if not ignore.exists():
        create(ignore, "*\n", mode=0o600)
    create(path, secrets.token_urlsafe(24) + "\n", mode=0o600)
    return [path]


def write_schema(folder: Path) -> list[Path]:
    """Put the JSON Schema beside the fleet file; an older one of ours is brought up to date, another file stays.

    Returns:
        What was written.
    """
    from gpufleet.spec.schema import SCHEMA_ID, json_schema

    path = folder / SCHEMA_FILE
    text = json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
    if not path.exists():
        create(path, text, mode=0o644)
        return [path]
    old = path.read_text(encoding="utf-8", errors="replace")
    if old == text or SCHEMA_ID not in old:
        return []
    path.write_text(text, encoding="utf-8")
    return [path]
