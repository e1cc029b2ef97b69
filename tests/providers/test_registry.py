from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpufleet.catalog import shipped
from gpufleet.errors import InvalidFleet
from gpufleet.providers.registry import open_provider
from gpufleet.spec.model import ProviderUse


def opened(folder: Path, use: str, **options: object) -> object:
    return open_provider(ProviderUse(use=use, **options), fleet_dir=folder, state_dir=folder)


def refusal(folder: Path, use: str, **options: object) -> InvalidFleet:
    with pytest.raises(InvalidFleet) as caught:
        opened(folder, use, **options)
    assert "\n" not in caught.value.message
    return caught.value


def write(folder: Path, name: str, text: str) -> None:
    (folder / "providers").mkdir(exist_ok=True)
    (folder / "providers" / f"{name}.yaml").write_text(text)


def test_an_unknown_provider_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    error = refusal(tmp_path, "mok")
    assert "'mok'" in error.message
    assert error.hint is not None
    assert "did you mean 'mock'" in error.hint
    assert "ssh" in error.hint


@pytest.mark.parametrize("name", ["../mock", "/etc/passwd", "mock.yaml/.."])
def test_a_name_is_never_taken_for_a_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidFleet, match="no provider named"):
        shipped.find("providers", name, extra_dirs=[tmp_path / "providers"])


def test_an_unknown_option_is_refused_with_a_guess(tmp_path: Path) -> None:
    error = refusal(tmp_path, "mock", time_scal=60)
    assert "'time_scal' is not an option" in error.message
    assert error.hint is not None
    assert "did you mean 'time_scale'" in error.hint


@pytest.mark.parametrize(
    ("use", "options", "said"),
    [
        ("mock", {"time_scale": 0}, "time_scale"),
        ("mock", {"time_scale": "nan"}, "time_scale"),
        ("mock", {"network": "10.0.0.0/8"}, "loopback"),
        ("mock", {"faults": [{"at": "create", "kind": "fire"}]}, "'fire' is not a fault at 'create'"),
        ("mock", {"faults": [{"at": "lunch", "kind": "capacity"}]}, "faults.0.at"),
        ("mock", {"pace": {"speed": 1}}, "pace.speed: there is no such key"),
        ("mock", {"prices": {"h200x8-east": -1}}, "prices.h200x8-east"),
        ("ssh", {}, "'hosts' or 'inventory'"),
        ("ssh", {"hosts": [{"host": "[::1]", "gpu": "B200:8"}]}, "without brackets"),
        ("ssh", {"hosts": [{"host": "ssh://a", "gpu": "B200:8"}]}, "without a scheme"),
        ("ssh", {"hosts": [{"host": "root@a", "gpu": "B200:8"}]}, "'user'"),
        ("ssh", {"hosts": [{"host": "a:22", "gpu": "B200:8"}]}, "'port'"),
        ("ssh", {"hosts": [{"host": "a b", "gpu": "B200:8"}]}, "host name"),
        ("ssh", {"hosts": [{"host": "-oProxyCommand=x", "gpu": "B200:8"}]}, "host name"),
        ("ssh", {"hosts": [{"host": "10.0.0.300", "gpu": "B200:8"}]}, "host name"),
        ("ssh", {"hosts": [{"host": "a", "gpu": "B200"}]}, "model:count"),
        ("ssh", {"hosts": [{"host": "a", "gpu": "B200:8", "host_key": "AAAA"}]}, "host key"),
        ("ssh", {"hosts": [{"host": "a", "gpu": "B200:8", "workdir": "work"}]}, "absolute path"),
        ("ssh", {"hosts": [{"host": "a", "gpu": "B200:8", "gpus": 1}]}, "hosts.0.gpus: there is no such key"),
        ("ssh", {"hosts": [{"host": "a", "gpu": "B200:8"}] * 2}, "listed twice"),
        ("ssh", {"inventory": "missing.yaml"}, "cannot be read"),
    ],
)
def test_a_wrong_option_is_refused(tmp_path: Path, use: str, options: dict[str, object], said: str) -> None:
    assert said in refusal(tmp_path, use, **options).message


def test_a_secret_written_into_the_file_is_refused_and_not_repeated(tmp_path: Path) -> None:
    error = refusal(tmp_path, "ssh", hosts=[{"host": "a", "gpu": "B200:8", "key": "hunter2-private"}])
    assert "reference" in error.message
    assert "hunter2" not in f"{error.message}{error.where}{error.hint}{error.__cause__}"


def test_an_inventory_file_lists_the_hosts(tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text("hosts:\n- {host: 10.0.0.1, gpu: 'B200:8'}\n")
    from gpufleet.domain.market import OfferQuery

    use = ProviderUse(use="ssh", inventory="hosts.yaml")
    offers = open_provider(use, fleet_dir=tmp_path, state_dir=tmp_path).offers(OfferQuery())
    assert [o.offer_id for o in offers] == ["10.0.0.1:22"]


def test_a_file_beside_the_fleet_adds_a_provider_and_its_options_are_defaults(tmp_path: Path) -> None:
    write(tmp_path, "fast", "kind: mock\noptions: {time_scale: 100, seed: 3}\n")
    use = ProviderUse(use="fast", time_scale=7)
    provider = open_provider(use, fleet_dir=tmp_path, state_dir=tmp_path)
    assert provider.name == "fast"
    assert provider.caps.time_scale == 7


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "fast.yaml"),
        ("- 1", "fast.yaml"),
        ("kind: [", "cannot be read"),
        ("kind: mock\ncolour: red\n", "colour"),
        ("kind: soap\n", "kind 'soap', which this gpufleet does not have"),
    ],
)
def test_a_broken_provider_file_is_refused_and_named(tmp_path: Path, text: str, said: str) -> None:
    write(tmp_path, "fast", text)
    assert said in refusal(tmp_path, "fast").message


def test_another_package_adds_a_kind_by_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "other-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: other\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[gpufleet.providers]\nmine = gpufleet.providers.mock.adapter:ADAPTER\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    write(tmp_path, "own", "kind: mine\n")
    assert opened(tmp_path, "own") is not None


def test_what_an_entry_point_names_must_be_an_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "other-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: other\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[gpufleet.providers]\nmine = json:dumps\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    write(tmp_path, "own", "kind: mine\n")
    assert "not a gpufleet adapter" in refusal(tmp_path, "own").message


def test_opening_and_using_the_mock_imports_neither_paramiko_nor_httpx(tmp_path: Path) -> None:
    code = f"""
import sys
from tests.providers.places import *
place = mock_place(Path({str(tmp_path)!r}))
provider = place.open()
made = rent(provider)
provider.inventory(); provider.get(made.instance_id); provider.terminate(made.instance_id)
from gpufleet.providers.mock import control
control.stop_all(market_of(place))
print([m for m in ("paramiko", "httpx", "rich", "sqlalchemy") if m in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert (run.stdout.strip(), run.returncode) == ("[]", 0), run.stderr


def test_the_shipped_providers_are_found_and_opened(tmp_path: Path) -> None:
    assert {"mock", "ssh"} <= set(shipped.names("providers"))
    assert shipped.find("providers", "mock").name == "mock.yaml"
    assert opened(tmp_path, "mock") is not None


def test_the_users_own_file_wins_over_the_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config" / "gpufleet" / "playbooks"
    config.mkdir(parents=True)
    (config / "check.yaml").write_text("name: check")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    assert shipped.find("playbooks", "check") == config / "check.yaml"
    here = tmp_path / "here" / "playbooks"
    here.mkdir(parents=True)
    (here / "check.yaml").write_text("name: check")
    monkeypatch.chdir(tmp_path / "here")
    assert shipped.find("playbooks", "check") == here / "check.yaml"
