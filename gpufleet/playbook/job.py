"""What a compiled playbook is: the only thing `gpufleet.remote` needs to know to run it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CompiledJob:
    """One script to be copied once, started detached and followed by its event log."""

    name: str
    """Directory-safe and unique per purpose on a node: ``image``, ``weights``, ``serve-decode-0``."""
    script: str
    """POSIX sh; holds no value and no secret, only references to environment variables."""
    environment: str
    """Text of the 0600 file that the script sources: ``export NAME='value'`` lines."""
    digest: str
    """sha256 over script and environment: a running job with the same digest is joined, not restarted."""
    steps: tuple[str, ...]
    """Step names in order, for progress."""
