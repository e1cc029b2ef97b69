from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.providers.mock import control
from tests.providers.places import Place, market_of, mock_place


@pytest.fixture
def mock(tmp_path: Path) -> Iterator[Place]:
    """A mock market; whatever a test leaves in it is ended."""
    place = mock_place(tmp_path)
    yield place
    control.stop_all(market_of(place))
    assert control.running(market_of(place)) == []
