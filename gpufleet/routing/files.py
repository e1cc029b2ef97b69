"""What the ``router`` playbook is given, and files on this machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from gpufleet.routing.config import RouterConfig
from gpufleet.routing.haproxy import render_haproxy, render_keys_map


def router_inputs(cfg: RouterConfig, keys: Mapping[str, str]) -> dict[str, str]:
    """Inputs of the ``router`` playbook, but for the secret ``GF_PEM`` (empty when there is no TLS).

    Args:
        keys: channel -> key; only hashes of them go into the inputs.

    Raises:
        CannotRender: see `render_haproxy` and `render_keys_map`.
    """
    return {
        "GF_ROUTER_DIR": cfg.directory,
        "GF_LISTEN": f"{cfg.listen_host}:{cfg.listen_port}",
        "GF_HAPROXY_CFG": render_haproxy(cfg),
        "GF_KEYS_MAP": render_keys_map(keys),
    }


def write_atomically(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Write a file whose readers see the old or the new content, never half of it; a missing directory is made 0700."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
