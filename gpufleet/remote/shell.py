"""Handing a terminal over to the system's ``ssh``, with the same key and the same pinned host key."""

from __future__ import annotations

from pathlib import Path

from gpufleet.domain.market import SshEndpoint


def ssh_argv(
    endpoint: SshEndpoint, private_key_file: Path, known_hosts_file: Path, command: str | None = None
) -> tuple[str, ...]:
    """The command line that opens a shell on a node, or runs ``command`` there on a terminal.

    It reads no file of the user's own ``~/.ssh``, and refuses any host key that is not in ``known_hosts_file``.
    """
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
    flags = [part for key, value in options.items() for part in ("-o", f"{key}={value}")]
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


def known_hosts_line(endpoint: SshEndpoint, host_key: str) -> str:
    """What the known_hosts file of a rental holds: its one host and key, with a newline."""
    host = endpoint.host if endpoint.port == 22 else f"[{endpoint.host}]:{endpoint.port}"
    return f"{host} {' '.join(host_key.split()[:2])}\n"
