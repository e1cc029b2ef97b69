"""Every test of behaviour runs on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpufleet.ledger.store import Store
from tests.ledger.postgres import new_database, running_server


class Clock:
    """A clock that tests move by hand."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 30, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def pass_seconds(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    with running_server() as url:
        yield url


@pytest.fixture
def postgres(postgres_server: str) -> str:
    return new_database(postgres_server)


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    if request.param == "sqlite":
        return tmp_path / "state"
    found: str = request.getfixturevalue("postgres")
    return found


@pytest.fixture
def store(location: Path | str, clock: Clock) -> Iterator[Store]:
    with Store.open(location, clock=clock) as opened:
        yield opened
