"""How tests are spread over workers: a file stays together, so that it brings its fleet or server up once.

Files whose tests each bring up a world of their own are marked ``spread`` and go wherever there is room.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import hypothesis
import pytest

# CI tries the same examples each time, so that it fails for the change it looks at; everybody else hunts for new ones.
# How long an example takes says how busy the machine is, and nothing about the program.
_PATIENT = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("everyone", **_PATIENT)
hypothesis.settings.register_profile("ci", derandomize=True, **_PATIENT)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "everyone")


def pytest_configure(config: pytest.Config) -> None:
    """Give tests a home of their own: none meets or touches what the user of this machine rented or set up."""
    for name in [name for name in os.environ if name.startswith("GPUFLEET_")]:
        del os.environ[name]
    home = tempfile.mkdtemp(prefix="gf-home")
    config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))
    for kind in ("CONFIG", "STATE"):
        os.environ[f"XDG_{kind}_HOME"] = str(Path(home, kind.lower()))
    config.addinivalue_line("markers", "spread: each test of this file may run on any worker")
    config.addinivalue_line("markers", "real: programs of others, of which this machine may have none; `make real`")
    config.addinivalue_line("markers", "report(*names): holds that what these public reports tell does not happen here")
    config.addinivalue_line("markers", "slow: whole fleets for one more case of a kind; run by `make test-slow`")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Here and not later: xdist reads the groups before a conftest's own look at all collected items."""
    if item.get_closest_marker("spread") is None:
        item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::", 1)[0]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The longest ones first, so that no worker is left alone with them at the end.
    items.sort(key=lambda item: item.get_closest_marker("spread") is None)
