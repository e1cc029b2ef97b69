"""A fleet at a described provider: its recorded shapes, looked at without the pauses that a real one needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gpufleet.engine.session import Session, open_session
from gpufleet.providers.base import Capabilities
from gpufleet.providers.rest.pacing import Pacer
from tests.engine.market import Odd, Place, take_the_place_of
from tests.providers.fakes.backend import KEY, Backend, served
from tests.providers.fakes.verda import CLIENT_ID


class Quick(Odd):
    """The provider, looked at without its pauses."""

    @property
    def caps(self) -> Capabilities:
        return replace(self.real.caps, poll_seconds=0.01, settle_seconds=0.0)


@dataclass
class Market:
    name: str
    backend: Backend
    here: Place

    def session(self) -> Session:
        session = open_session(self.here.file, state_dir=self.here.root / "s")
        session.store.save_fleet(session.fleet.name, session.loaded.text, str(self.here.file))
        take_the_place_of(session, Quick(session.provider(session.fleet.provider)))
        return session

    def left(self) -> list[str]:
        """What still costs money, or lies about."""
        volumes = getattr(self.backend, "volumes", {})
        living = [m.id for m in self.backend.made.values() if m.ended is None]
        return [*living, *volumes, *self.backend.ssh_keys]


@contextmanager
def described_market(
    name: str, backend: Backend, folder: Path, patch: pytest.MonkeyPatch, **file: Any
) -> Iterator[Market]:
    """A fleet file that names the provider, and the backend that answers for it.

    Args:
        file: further sections of the fleet file.
    """
    patch.setenv("FAKE_KEY", KEY)
    patch.setenv("FAKE_CLIENT", CLIENT_ID)
    patch.setattr(Pacer, "take_turn", lambda *_: 0.0)
    client = {"client_id": "env:FAKE_CLIENT"} if name == "verda" else {}
    with served(backend) as url:
        here = Place(folder)
        here.write(provider={"use": name, "key": "env:FAKE_KEY", "base_url": url, **client}, **file)
        yield Market(name, backend, here)
