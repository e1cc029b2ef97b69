"""The texts that HAProxy reads: it accepts them, and what could break out of them is refused."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.routing.capabilities import COLLECTIONS, SCALARS
from gpufleet.routing.config import ChannelRule, Probe, RouterConfig, Server
from gpufleet.routing.errors import CannotRender
from gpufleet.routing.files import router_inputs
from gpufleet.routing.haproxy import render_haproxy, render_keys_map
from gpufleet.spec.model import RequestClass

CELL = Server("cell-decode-0", "10.0.1.1", 23333, (Probe("10.0.1.1", 23333), Probe("10.0.2.1", 5557)))
NATIVE = Server("native", "10.0.3.1", 30000)
CONFIG = RouterConfig(
    fleet="demo",
    listen_host="127.0.0.1",
    listen_port=8080,
    directory="/tmp/gf",
    tls=False,
    cells=(CELL,),
    native=(NATIVE,),
    channels=(ChannelRule("chat", RequestClass.INTERACTIVE, 3), ChannelRule("batch", RequestClass.BATCH, -100)),
    spill_queue=4,
    queue_timeout_s=1800,
    without_max_tokens_native=True,
)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cells": ()},
        {"native": ()},
        {"spill_queue": 0},
        {"without_max_tokens_native": False},
        {"channels": (ChannelRule("b", RequestClass.BATCH, 0),)},
        {"channels": (ChannelRule("i", RequestClass.INTERACTIVE, 100),)},
        {"listen_host": "::1"},
        {"cells": (replace(CELL, host="fd00::1", probes=(Probe("fd00::2", 5557),)),)},
        {"cells": tuple(replace(CELL, name=f"cell-decode-{i}") for i in range(50))},
        {"tls": True},
    ],
    ids=str,
)
def test_haproxy_accepts_what_is_rendered(tmp_path: Path, changes: dict[str, Any]) -> None:
    from datetime import UTC, datetime

    from gpufleet.routing.tls import self_signed

    config = replace(CONFIG, **changes, directory="/tmp/gf")
    text = render_haproxy(config).replace("/tmp/gf/", f"{tmp_path}/")
    (tmp_path / "haproxy.cfg").write_text(text)
    (tmp_path / "keys.map").write_text(render_keys_map({"chat": "k"}))
    (tmp_path / "server-state").write_text("1\n")
    (tmp_path / "endpoint.pem").write_text(self_signed("127.0.0.1", datetime.now(UTC)))
    done = subprocess.run(
        ["haproxy", "-c", "-f", "haproxy.cfg"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr


@pytest.mark.parametrize(
    "changes",
    [
        {"channels": (ChannelRule("two words", RequestClass.BATCH, 0),)},
        {"channels": (ChannelRule("x }\nfrontend evil", RequestClass.BATCH, 0),)},
        {"fleet": "a\nb"},
        {"cells": (replace(CELL, host="10.0.0.1 check"),)},
        {"cells": (replace(CELL, probes=(Probe("10.0.0.1", 1, "/x y"),)),)},
        {"cells": (), "native": ()},
        {"directory": "relative/path"},
        {"directory": "/tmp/with space"},
        {"directory": "/" + "x" * 100},
    ],
    ids=str,
)
def test_what_cannot_stand_in_the_file_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(CannotRender) as caught:
        render_haproxy(replace(CONFIG, **changes))
    assert "\n" not in caught.value.message


def test_the_same_configuration_renders_to_the_same_text() -> None:
    assert render_haproxy(CONFIG) == render_haproxy(replace(CONFIG))


def test_every_parameter_has_its_rule_and_no_other_name() -> None:
    text = render_haproxy(CONFIG)
    for name in [p.name.replace(".", "_") for p in SCALARS] + list(COLLECTIONS):
        assert f"acl has_{name} " in text
        assert f"if tilert_path named has_{name}" in text


def test_the_key_map_holds_hashes_of_keys() -> None:
    text = render_keys_map({"chat": "secret-1", "batch": "secret-2"})
    assert f"{sha256(b'secret-1').hexdigest()} chat\n" in text
    assert "secret" not in text


def test_two_channels_with_one_key_are_refused_without_repeating_it() -> None:
    with pytest.raises(CannotRender, match="chat and batch have the same key") as caught:
        render_keys_map({"chat": "secret-1", "batch": "secret-1"})
    assert "secret" not in str(caught.value)


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.text(min_size=1), max_size=5))
def test_no_key_ever_shows_in_a_map(keys: dict[str, str]) -> None:
    if len(set(keys.values())) == len(keys):
        lines = render_keys_map(keys).splitlines()
        assert sorted(line.split()[1] for line in lines) == sorted(keys)
        assert all(len(line.split()[0]) == 64 for line in lines)


def test_the_playbooks_inputs_hold_no_key() -> None:
    values = router_inputs(CONFIG, {"chat": "secret-1"})
    assert set(values) == {"GF_ROUTER_DIR", "GF_LISTEN", "GF_HAPROXY_CFG", "GF_KEYS_MAP"}
    assert "secret-1" not in repr(values)
