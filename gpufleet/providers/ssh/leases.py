"""Which host is leased for what: one file for all fleets of a state directory."""

from __future__ import annotations

import getpass
import secrets
import shlex
import socket
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, Field

from gpufleet.providers.ssh.options import Host

_HERE = Path(__file__).parent


class Lease(BaseModel):
    """One host, held for one node of a fleet."""

    instance_id: str
    key: str
    fleet: str
    node: str
    host: Host
    """As it was listed when it was leased: it stays reachable when it is struck from the list."""
    created_at: datetime
    deadline_at: datetime | None = None
    """From then on another operator may take the host; our own lease stays until it is given back."""
    ended_at: datetime | None = None


class Leases(BaseModel):
    """The file's content."""

    account: str = Field(default_factory=lambda: f"ssh-{secrets.token_hex(6)}")
    """Stands for this file: another one knows nothing of our leases."""
    leases: dict[str, Lease] = Field(default_factory=dict)

    def held(self) -> list[Lease]:
        """Leases that are not given back."""
        return [lease for lease in self.leases.values() if lease.ended_at is None]


def lease_script(lease: Lease) -> str:
    """See `gpufleet.providers.base.LeasesHosts`."""
    return _settings(lease) + (_HERE / "lease.sh").read_text(encoding="utf-8")


def release_script(lease: Lease) -> str:
    """See `gpufleet.providers.base.LeasesHosts`."""
    return _settings(lease) + (_HERE / "release.sh").read_text(encoding="utf-8")


def _settings(lease: Lease) -> str:
    values = {
        "GF_LEASE_DIR": f"{lease.host.workdir}/lease",
        "GF_LEASE_OWNER": _owner(),
        "GF_LEASE_FLEET": lease.fleet,
        "GF_LEASE_NODE": lease.node,
        "GF_LEASE_KEY": lease.key,
        "GF_LEASE_EXPIRES": str(int(lease.deadline_at.timestamp())) if lease.deadline_at else "0",
    }
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())


def _owner() -> str:
    return "".join((getpass.getuser() + "@" + socket.gethostname()).split())
