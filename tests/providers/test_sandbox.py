"""The contract again, with each provider file spoken by the sandbox server instead of by its provider."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpufleet.errors import UsageError
from gpufleet.providers.registry import load_provider_file
from gpufleet.providers.rest.loading import check_description
from gpufleet.providers.rest.pacing import Pacer
from gpufleet.providers.sandbox.server import Sandbox, serve
from tests.providers.contract import ProviderContract
from tests.providers.places import Place
from tests.providers.verified import verify


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    name = request.cls.use
    monkeypatch.setattr(Pacer, "take_turn", lambda *_: 0.0)
    sandbox = Sandbox(name, check_description(load_provider_file(name, fleet_dir=tmp_path).rest, name=name))
    monkeypatch.setenv("SANDBOX_KEY", sandbox.key)
    monkeypatch.setenv("SANDBOX_CLIENT", sandbox.client_id)
    server = serve(sandbox, "127.72.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    options: dict[str, Any] = {"key": "env:SANDBOX_KEY", "base_url": f"http://127.72.0.1:{server.server_address[1]}"}
    if name == "verda":
        options["client_id"] = "env:SANDBOX_CLIENT"
    if name == "nexgpu":
        options |= {"acknowledged_unverified": True, "accept_unowned": True}
    made = Place(name, tmp_path, options)
    if name == "nexgpu":
        verify(made)
    yield made
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.slow
class TestLambda(ProviderContract):
    use = "lambda"


class TestShadeform(ProviderContract):
    use = "shadeform"


@pytest.mark.slow
class TestRunpod(ProviderContract):
    use = "runpod"


@pytest.mark.slow
class TestVast(ProviderContract):
    use = "vast"


class TestVerda(ProviderContract):
    use = "verda"


@pytest.mark.slow
class TestPrime(ProviderContract):
    use = "prime"


class TestNexgpu(ProviderContract):
    use = "nexgpu"


class TestRefusals:
    use = "nexgpu"

    def test_it_refuses_a_wrong_key_a_wrong_method_and_a_field_that_the_file_has_not(self, place: Place) -> None:
        url, key = place.options["base_url"], {"authorization": f"Bearer {__import__('os').environ['SANDBOX_KEY']}"}
        assert httpx.get(f"{url}/offers").status_code == 401
        assert httpx.delete(f"{url}/offers", headers=key).status_code == 404
        assert httpx.post(f"{url}/instances", headers=key, json={"colour": "red"}).status_code == 422
        assert httpx.get(f"{url}/offers", headers=key).status_code == 200

    def test_it_listens_on_this_machine_alone(self) -> None:
        sandbox = Sandbox("x", check_description(load_provider_file("nexgpu", fleet_dir=Path()).rest, name="x"))
        with pytest.raises(UsageError, match="loopback only"):
            serve(sandbox, "0.0.0.0", 0)
