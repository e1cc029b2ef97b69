"""Where provider and playbook files are found: the user's own first, then those that came with gpufleet."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from gpufleet.errors import InvalidFleet

Kind = Literal["providers", "playbooks"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PACKAGE = Path(__file__).resolve().parent.parent


def find(kind: Kind, name: str, *, extra_dirs: Sequence[Path] = ()) -> Path:
    """The file ``<name>.yaml`` of a kind; the first folder that has it wins (see `folders`).

    Raises:
        InvalidFleet: when no folder has it; names the known ones.
    """
    if _NAME.fullmatch(name):
        for folder in folders(kind, extra_dirs=extra_dirs):
            path = folder / f"{name}.yaml"
            if path.is_file():
                return path
    known = names(kind, extra_dirs=extra_dirs)
    close = difflib.get_close_matches(name, known, n=1)
    guess = f"did you mean '{close[0]}'? " if close else ""
    raise InvalidFleet(
        f"there is no {kind.removesuffix('s')} named '{name[:60]}'",
        hint=f"{guess}known: {', '.join(known)}; another one is a file {kind}/<name>.yaml",
    )


def names(kind: Kind, *, extra_dirs: Sequence[Path] = ()) -> list[str]:
    """Every name that `find` would find, sorted."""
    return sorted({p.stem for folder in folders(kind, extra_dirs=extra_dirs) for p in folder.glob("*.yaml")})


def folders(kind: Kind, *, extra_dirs: Sequence[Path] = ()) -> list[Path]:
    """Folders that are searched, in order.

    ``extra_dirs``, the current folder's ``./providers``, the config directory (``$XDG_CONFIG_HOME/gpufleet/providers``,
    by default under ``~/.config``), the copy inside the installed package, and the source checkout.
    """
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return [
        *extra_dirs,
        Path(kind).resolve(),
        config / "gpufleet" / kind,
        _PACKAGE / "_data" / kind,
        _PACKAGE.parent / kind,
    ]
