"""The file that `gpufleet init` writes is valid and says what was answered."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from gpufleet.errors import InvalidFleet
from gpufleet.spec.load import parse_fleet
from gpufleet.spec.template import SCHEMA_LINE, Answers, render_template


def test_the_default_answers_make_a_valid_file() -> None:
    text = render_template(Answers())
    assert text.startswith(SCHEMA_LINE + "\n")
    found = parse_fleet(text)
    assert found.warnings == ()
    assert found.fleet.name == "my-fleet"
    assert [str(node) for node in found.fleet.nodes()] == ["prefill/0", "decode/0", "native/0"]


@pytest.mark.parametrize(
    ("answers", "roles"),
    [
        (Answers(native=0), ["prefill", "decode"]),
        (Answers(decode=0), ["prefill", "native"]),
        (Answers(prefill=3, decode=2, native=4, decode_gpu="B300:8"), ["prefill", "decode", "native"]),
    ],
)
def test_any_mix_of_pools_is_valid(answers: Answers, roles: list[str]) -> None:
    assert list(parse_fleet(render_template(answers)).fleet.pools) == roles


def test_every_answer_is_in_the_file() -> None:
    answers = Answers(
        name="prod",
        provider="ssh",
        prefill=4,
        decode=3,
        native=2,
        prefill_gpu="B200:8",
        decode_gpu="B200:8",
        listen="0.0.0.0:8443",
        chat_key="file:secrets/chat key",
        batch_key="env:B",
        usd_per_hour=Decimal("512.50"),
    )
    fleet = parse_fleet(render_template(answers)).fleet
    assert (fleet.name, fleet.provider.use, fleet.router.listen) == ("prod", "ssh", "0.0.0.0:8443")
    assert {name: (str(pool.gpu), pool.count) for name, pool in fleet.pools.items()} == {
        "prefill": ("B200:8", 4),
        "decode": ("B200:8", 3),
        "native": ("B200:8", 2),
    }
    assert {name: str(channel.key) for name, channel in fleet.router.channels.items()} == {
        "chat": "file:secrets/chat key",
        "batch": "env:B",
    }
    assert fleet.budget.max_usd_per_hour == Decimal("512.50")


@pytest.mark.parametrize("name", ["a: b", "x\ny: 1", "'", '"', "#", "*a", "no way"])
def test_an_answer_cannot_add_keys(name: str) -> None:
    for field in ("name", "provider", "listen", "chat_key", "decode_gpu"):
        with pytest.raises(InvalidFleet) as caught:
            parse_fleet(render_template(replace(Answers(), **{field: name})))
        assert not caught.value.message.startswith(("not YAML", "unknown key"))
