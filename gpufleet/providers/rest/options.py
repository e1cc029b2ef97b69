"""What a fleet file may say to a provider that a file describes."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from gpufleet.providers.adapter import Options
from gpufleet.spec.values import SecretRef


class RestOptions(Options):
    """Options of ``kind: rest``."""

    base_url: str | None = None
    """Over the provider file's; https, or http on this machine."""
    key: SecretRef
    """The API key (for oauth2 the client's secret)."""
    client_id: SecretRef | None = None
    """For oauth2."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Over the provider file's ``rest.settings``."""
    acknowledged_unverified: bool = False
    """For a description that is a guess: rent all the same, once `gpufleet providers verify` has passed."""
    accept_unowned: bool = False
    """For a provider that keeps no name of ours: rent there, one node at a time."""
