"""The example fleets are valid, and one of them shows every key there is."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import BaseModel

from gpufleet.domain.nodes import Role
from gpufleet.providers.registry import open_provider
from gpufleet.spec.dump import dump_fleet
from gpufleet.spec.explain import keys_of
from gpufleet.spec.load import load_fleet, parse_fleet
from gpufleet.spec.model import ProviderUse, Versions
from gpufleet.spec.template import SCHEMA_LINE

EXAMPLES = Path(__file__).parents[2] / "examples"
FLEETS = sorted(path for path in EXAMPLES.glob("*.yaml") if not path.name.endswith(".lock.yaml"))
"""Without the records that runs of the examples leave beside them."""


@pytest.mark.parametrize("path", FLEETS, ids=lambda path: path.name)
def test_an_example_is_valid_and_names_the_schema(path: Path) -> None:
    found = load_fleet(path)
    assert found.warnings == ()
    assert found.text.startswith(SCHEMA_LINE + "\n")
    assert parse_fleet(dump_fleet(found.fleet)).fleet == found.fleet


def test_the_quickstart_is_the_fleet_of_the_readme() -> None:
    fleet = load_fleet(EXAMPLES / "quickstart.yaml").fleet
    assert {role: len(fleet.nodes_of(role)) for role in Role} == {Role.PREFILL: 2, Role.DECODE: 2, Role.NATIVE: 1}
    assert {name: str(pool.gpu) for name, pool in fleet.pools.items()} == {
        "prefill": "H200:8",
        "decode": "B200:8",
        "native": "H200:8",
    }
    assert fleet.provider.use == "mock"


def test_every_key_is_shown_and_explained() -> None:
    found = load_fleet(EXAMPLES / "fleet.yaml")
    unset = set(unset_keys(found.fleet, ""))
    assert unset == {"lock"}
    assert "\n# lock: " in found.text


def test_every_key_has_a_comment_where_it_first_appears() -> None:
    lines = [line.strip() for line in (EXAMPLES / "fleet.yaml").read_text().splitlines()]
    explained = {key_of(line) for before, line in pairwise(lines) if before.startswith("#")}
    shown_by_their_section = set(keys_of(Versions)) | {"chat", "batch", "use", "time_scale", "NCCL_DEBUG"}
    shown = {key_of(line) for line in lines if line and not line.startswith("#")}
    assert shown - explained - shown_by_their_section == set()


def key_of(line: str) -> str:
    return line.partition(":")[0]


def unset_keys(section: BaseModel, path: str) -> list[str]:
    """Every key that the file leaves out; of several pools or channels the first shows all."""
    fields = type(section).model_fields
    unset = [path + (fields[name].alias or name) for name in fields if name not in section.model_fields_set]
    for name in fields:
        value = getattr(section, name)
        first = next(iter(value.values()), None) if isinstance(value, dict) else value
        if isinstance(first, BaseModel) and not isinstance(first, ProviderUse):
            unset += unset_keys(first, f"{path}{name}.")
    return unset


@pytest.mark.parametrize("path", FLEETS, ids=lambda path: path.name)
def test_the_provider_takes_the_options_of_the_example(path: Path, tmp_path: Path) -> None:
    fleet = load_fleet(path).fleet
    for pool in fleet.pools:
        use = fleet.provider_of(pool)
        assert open_provider(use, fleet_dir=EXAMPLES, state_dir=tmp_path).name == use.use
