"""Whether a guessed description was tried: the record that `gpufleet providers verify` leaves."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from gpufleet.providers.rest.description import Description


class Verification(BaseModel):
    """What was tried, and when. Holds no secret."""

    model_config = ConfigDict(frozen=True)
    digest: str
    at: datetime
    account: str
    offers: int
    instances: int


def digest_of(description: Description, base_url: str) -> str:
    """Changes with the description and with the address it was tried at."""
    text = json.dumps([base_url.rstrip("/"), description.model_dump(mode="json")], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def record_path(state_dir: Path, provider: str) -> Path:
    """Where the record of a provider is."""
    return state_dir / "providers" / f"{provider}.verified.json"


def read_record(state_dir: Path, provider: str) -> Verification | None:
    """The record, or None where there is none that can be read."""
    try:
        return Verification.model_validate_json(record_path(state_dir, provider).read_bytes())
    except (OSError, ValidationError):
        return None


def why_not_yet(description: Description, base_url: str, *, state_dir: Path, provider: str, acknowledged: bool) -> str:
    """Why nothing may be rented there yet; empty when it may."""
    if not description.assumed:
        return ""
    record = read_record(state_dir, provider)
    if record is None or record.digest != digest_of(description, base_url):
        return (
            f"the description of {provider} is a guess and was not tried as it is: gpufleet providers verify {provider}"
        )
    if not acknowledged:
        return f"create and terminate of {provider} are a guess; to go on, set acknowledged_unverified: true"
    return ""
