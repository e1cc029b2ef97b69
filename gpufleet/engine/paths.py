"""Where gpufleet keeps things on this machine, and where on a node."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gpufleet.errors import UsageError


def default_state_dir() -> Path:
    """``$GPUFLEET_STATE``, else ``$XDG_STATE_HOME/gpufleet``, else ``~/.local/state/gpufleet``."""
    if chosen := os.environ.get("GPUFLEET_STATE"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "gpufleet"


def check_private(state_dir: Path) -> None:
    """Whether nobody else on this machine can put files where the keys and the ledger are.

    Raises:
        UsageError: the directory belongs to another user, or others may write in it.
    """
    if not state_dir.exists():
        return
    about = state_dir.stat()
    if about.st_uid not in {os.getuid(), 0}:
        raise UsageError(f"{state_dir} belongs to another user", hint="choose another state directory: GPUFLEET_STATE")
    by_group = about.st_mode & 0o020 and about.st_gid != os.getgid()  # a group of one's own is common
    if about.st_mode & 0o002 or by_group:
        raise UsageError(f"other users may write in {state_dir}", hint=f"chmod 700 {state_dir}")


@dataclass(frozen=True)
class FleetPaths:
    """One fleet's files under the state directory; all 0600 in a 0700 directory."""

    root: Path

    @property
    def keys(self) -> Path:
        """The SSH key pair that logs in to this fleet's nodes."""
        return self.root / "ssh"

    @property
    def router(self) -> Path:
        """HAProxy's files when it runs on this machine."""
        return self.root / "router"

    @property
    def certificate(self) -> Path:
        """The endpoint's certificate and key in one PEM file."""
        return self.root / "endpoint.pem"

    @property
    def known_hosts(self) -> Path:
        """One known_hosts file per rental, for handing over to the system's ssh."""
        return self.root / "known_hosts.d"


@dataclass(frozen=True)
class NodePaths:
    """Directories on a node, below its workdir; the same inside and outside of containers."""

    workdir: str

    @property
    def router(self) -> str:
        """HAProxy's files when it runs there."""
        return f"{self.workdir}/router"

    @property
    def run(self) -> str:
        """What runs inside a rental that is a container, a directory for each."""
        return f"{self.workdir}/run"

    @property
    def gate(self) -> str:
        """The KV gate's program and its state."""
        return f"{self.workdir}/gate"

    def model(self, model_id: str) -> str:
        """The Hugging Face checkpoint."""
        return f"{self.workdir}/weights/{model_id.rsplit('/', 1)[-1]}"

    def converted(self, model_id: str) -> str:
        """TileRT's converted weights."""
        return f"{self.model(model_id)}-TileRT"
