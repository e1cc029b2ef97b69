"""The contract, kept by each provider."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gpufleet.providers.rest.pacing import Pacer
from tests.providers.contract import ProviderContract
from tests.providers.fakes.backend import KEY, Backend, served
from tests.providers.fakes.lambda_ import Lambda
from tests.providers.fakes.nexgpu import Nexgpu
from tests.providers.fakes.prime import Prime
from tests.providers.fakes.runpod import Runpod
from tests.providers.fakes.shadeform import Shadeform
from tests.providers.fakes.vast import Vast
from tests.providers.fakes.verda import CLIENT_ID, Verda
from tests.providers.places import Place
from tests.providers.verified import verify


class TestMock(ProviderContract):
    @pytest.fixture
    def place(self, mock: Place) -> Place:
        return mock.with_options(stock={"bigram-east": 3})


class TestMockWithAllAbilities(ProviderContract):
    @pytest.fixture
    def place(self, mock: Place) -> Place:
        options = {"volumes": True, "ssh_keys": True, "clusters": True, "account": "mine"}
        return mock.with_options(stock={"bigram-east": 3}, **options)


class TestSsh(ProviderContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        hosts = [
            {"host": "127.65.0.1", "gpu": "H200:8", "usd_per_hour": 20, "region": "lab", "disk_gb": 4000},
            {"host": "127.65.0.2", "gpu": "H200:8", "usd_per_hour": 20, "region": "lab", "disk_gb": 4000},
            {
                "host": "127.65.0.2",
                "port": 2222,
                "gpu": "B200:8",
                "usd_per_hour": "40.5",
                "region": "lab",
                "disk_gb": 4000,
            },
        ]
        return Place("ssh", tmp_path, {"hosts": hosts})


class RestContract(ProviderContract):
    """A provider file against its provider's recorded shapes: under respx here, over HTTP for other processes."""

    use: str
    backend: type[Backend]
    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture
    def market(self) -> Iterator[tuple[Backend, str]]:
        backend = self.backend()
        with served(backend) as url:
            yield backend, url

    @pytest.fixture(autouse=True)
    def _unpaced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Turns of seconds are tested with the pacer; here they would only be waited for."""
        monkeypatch.setattr(Pacer, "take_turn", lambda *_: 0.0)

    @pytest.fixture
    def place(self, tmp_path: Path, market: tuple[Backend, str], monkeypatch: pytest.MonkeyPatch) -> Place:
        monkeypatch.setenv("FAKE_KEY", KEY)
        monkeypatch.setenv("FAKE_CLIENT", CLIENT_ID)
        options = {"key": "env:FAKE_KEY", "base_url": market[1], **self.options}
        return Place(self.use, tmp_path, options)


class TestLambda(RestContract):
    use, backend = "lambda", Lambda


class TestShadeform(RestContract):
    use, backend = "shadeform", Shadeform


class TestRunpod(RestContract):
    use, backend = "runpod", Runpod


class TestVast(RestContract):
    use, backend = "vast", Vast


class TestVerda(RestContract):
    use, backend = "verda", Verda
    options: ClassVar[dict[str, Any]] = {"client_id": "env:FAKE_CLIENT"}


class TestPrime(RestContract):
    use, backend = "prime", Prime


class TestNexgpu(RestContract):
    use, backend = "nexgpu", Nexgpu
    options: ClassVar[dict[str, Any]] = {"acknowledged_unverified": True, "accept_unowned": True}

    @pytest.fixture
    def place(self, tmp_path: Path, market: tuple[Backend, str], monkeypatch: pytest.MonkeyPatch) -> Place:
        monkeypatch.setenv("FAKE_KEY", KEY)
        place = Place(self.use, tmp_path, {"key": "env:FAKE_KEY", "base_url": market[1], **self.options})
        verify(place)
        return place
