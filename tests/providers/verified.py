"""What `gpufleet providers verify` leaves behind, for tests that are about something else."""

from __future__ import annotations

from datetime import UTC, datetime

from gpufleet.providers.rest.provider import RestProvider
from gpufleet.providers.rest.verified import Verification, digest_of, record_path
from tests.providers.places import Place


def verify(place: Place) -> None:
    provider = place.open()
    assert isinstance(provider, RestProvider)
    digest = digest_of(provider.description, provider.base_url)
    path = record_path(place.folder, place.use)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = Verification(digest=digest, at=datetime.now(UTC), account="acct-9", offers=2, instances=0)
    path.write_text(record.model_dump_json())
