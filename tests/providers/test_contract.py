"""The contract, kept by each provider."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.providers.contract import ProviderContract
from tests.providers.places import Place


class TestMock(ProviderContract):
    @pytest.fixture
    def place(self, mock: Place) -> Place:
        return mock.with_options(stock={"bigram-east": 3})


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
