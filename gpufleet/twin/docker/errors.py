"""How docker fails: a line on stderr and an exit status."""

from __future__ import annotations


class DockerError(Exception):
    """Ends the command with ``status`` and docker's own words."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


def daemon(message: str, status: int = 1) -> DockerError:
    """What the daemon refused."""
    return DockerError(f"Error response from daemon: {message}", status)


def refused_run(message: str, status: int = 125) -> DockerError:
    """What ``docker run`` prints when no container came up."""
    return DockerError(f"docker: {message}\n\nRun 'docker run --help' for more information", status)
