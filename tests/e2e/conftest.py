"""Fleets that really come up: one per module for what only looks at it."""

from __future__ import annotations

import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.world import World, world


def _network(name: str) -> str:
    """A /24 of 127.80.0.0/12 per test module or test."""
    number = zlib.crc32(name.encode())
    return f"127.{80 + number % 16}.{number // 16 % 256}.0/24"


@pytest.fixture(scope="session")
def short_folder() -> Iterator[Callable[[], Path]]:
    """Makes folders whose names leave room for a unix socket deep below them."""
    made: list[Path] = []

    def make() -> Path:
        made.append(Path(tempfile.mkdtemp(prefix="gf")))
        return made[-1]

    yield make
    for folder in made:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[World]:
    """A fleet that is up."""
    with world(tmp_path_factory.mktemp("w"), _network(request.module.__name__)) as made:
        made.ok("up", "--yes")
        yield made


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[World]:
    """A fleet that is not up yet."""
    with world(tmp_path_factory.mktemp("w"), _network(request.node.nodeid)) as made:
        yield made
