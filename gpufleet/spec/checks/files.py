"""Files that hold secrets: who may read them. The one check that looks at the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpufleet.spec.model import Fleet
from gpufleet.spec.problems import Loc, Problem, Severity
from gpufleet.spec.values import SecretRef

_OTHERS = 0o077


def check_secret_files(fleet: Fleet, base: Path) -> Iterator[Problem]:
    """A warning for each secret that other users of this machine can read. Missing files are told when they are used.

    Args:
        base: where relative paths start, the fleet file's folder.
    """
    for loc, secret in secrets(fleet):
        if secret.kind == "file" and _is_open(secret.path(base)):
            yield Problem(
                f"{'.'.join(map(str, loc))}: others on this machine can read {secret.name}",
                loc=loc,
                hint=f"chmod 600 {secret.path(base)}",
                severity=Severity.WARNING,
            )


def secrets(fleet: Fleet) -> Iterator[tuple[Loc, SecretRef]]:
    """Every secret that the file refers to outside of provider sections, and where."""
    if fleet.model.hf_token:
        yield ("model", "hf_token"), fleet.model.hf_token
    for key in ("access_key", "secret_key"):
        if secret := getattr(fleet.weights, key):
            yield ("weights", key), secret
    if fleet.router.tls and fleet.router.tls.key:
        yield ("router", "tls", "key"), fleet.router.tls.key
    for name, channel in fleet.router.channels.items():
        yield ("router", "channels", name, "key"), channel.key


def _is_open(path: Path) -> bool:
    try:
        return path.is_file() and bool(path.stat().st_mode & _OTHERS)
    except OSError:
        return False
