"""A valid fleet file, and ways to spoil it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.errors import InvalidFleet
from gpufleet.spec.load import LoadedFleet, parse_fleet
from gpufleet.spec.problems import Problem

BASE = """\
name: demo
provider: mock
model:
  id: zai-org/GLM-5.1-FP8
pools:
  prefill:
    gpu: H200:8
    count: 2
  decode:
    gpu: B200:8
    count: 2
  native:
    gpu: H200:8
    count: 1
router:
  listen: 127.0.0.1:8080
  channels:
    chat:
      class: interactive
      key: env:CHAT_KEY
    batch:
      class: batch
      key: env:BATCH_KEY
"""


def edited(*changes: tuple[str, str]) -> str:
    """The valid file with each text replaced once."""
    text = BASE
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


def loaded(*changes: tuple[str, str]) -> LoadedFleet:
    return parse_fleet(edited(*changes))


def refusal(text: str) -> InvalidFleet:
    """The error that this text ends in; its message is one line."""
    with pytest.raises(InvalidFleet) as caught:
        parse_fleet(text, path=Path("fleet.yaml"))
    assert caught.value.message.isprintable()
    return caught.value


def problems(text: str) -> tuple[Problem, ...]:
    """All problems, warnings included."""
    with pytest.raises(InvalidFleet) as caught:
        parse_fleet(text)
    found: tuple[Problem, ...] = caught.value.problems  # type: ignore[attr-defined]
    return found
