"""Handing a terminal over to the system's ``ssh``, with the same key and the same pinned host key."""

from __future__ import annotations

import shlex
from pathlib import Path

from gpufleet.domain.market import SshEndpoint


def ssh_argv(
    endpoint: SshEndpoint, private_key_file: Path, known_hosts_file: Path, command: str | None = None
) -> tuple[str, ...]:
    """The command line that opens a shell on a node, or runs ``command`` there on a terminal.

    It reads no file of the user's own ``~/.ssh``, and refuses any host key that is not in ``known_hosts_file``.
    """
    flags = _flags(known_hosts_file)
    if endpoint.jump is not None:
        flags += ["-o", f"ProxyCommand={_proxy(endpoint.jump, private_key_file, known_hosts_file)}"]
    target = ["-p", str(endpoint.port), "-l", endpoint.user, endpoint.host]
    return (
        "ssh",
        "-F",
        "/dev/null",
        "-i",
        str(private_key_file),
        *flags,
        "-t",
        *target,
        *([command] if command else []),
    )


def _proxy(jump: SshEndpoint, private_key_file: Path, known_hosts_file: Path) -> str:
    """``ssh -J`` would take neither our key nor our known_hosts to the host in between."""
    login = ["-p", str(jump.port), "-l", jump.user, "-W", "%h:%p", jump.host]
    return shlex.join(["ssh", "-F", "/dev/null", "-i", str(private_key_file), *_flags(known_hosts_file), *login])


def _flags(known_hosts_file: Path) -> list[str]:
    options = {
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "UserKnownHostsFile": str(known_hosts_file),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "PasswordAuthentication": "no",
        "ServerAliveInterval": "15",
    }
    return [part for key, value in options.items() for part in ("-o", f"{key}={value}")]


def known_hosts_line(endpoint: SshEndpoint, host_key: str) -> str:
    """What the known_hosts file of a rental holds: its host and key, and those of the one in between."""
    host = endpoint.host if endpoint.port == 22 else f"[{endpoint.host}]:{endpoint.port}"
    own = f"{host} {' '.join(host_key.split()[:2])}\n"
    jump = endpoint.jump
    return own + (known_hosts_line(jump, jump.host_key) if jump and jump.host_key else "")
