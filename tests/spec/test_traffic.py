"""What the file says about requests, against what its nodes can serve."""

from __future__ import annotations

import pytest

from gpufleet.spec.load import parse_fleet
from gpufleet.spec.model import Traffic
from gpufleet.spec.problems import Problem
from gpufleet.spec.ratio import ratio_of, told
from tests.spec.fleets import edited

TWO_PREFILLS, TWO_DECODES = "    gpu: H200:8\n    count: 2", "    gpu: B200:8\n    count: 2"


def warnings(decode: int, traffic: str) -> list[Problem]:
    text = edited(
        (TWO_PREFILLS, "    gpu: H200:8\n    count: 1\n    gate: on"),
        (TWO_DECODES, f"    gpu: B200:8\n    count: {decode}"),
    )
    return list(parse_fleet(f"{text}traffic: {{{traffic}}}\n").warnings)


def test_long_answers_leave_a_prefill_node_time_for_more_decode_nodes() -> None:
    short = ratio_of(Traffic(prompt_tokens=8000, answer_tokens=300))
    long = ratio_of(Traffic(prompt_tokens=8000, answer_tokens=3000))
    assert (short.decode_per_prefill, long.decode_per_prefill) == (2, 12)


def test_prompts_of_native_requests_take_prefill_time_from_the_decode_nodes() -> None:
    alone = ratio_of(Traffic(prompt_tokens=8000, answer_tokens=3000))
    shared = ratio_of(Traffic(prompt_tokens=8000, answer_tokens=3000, interactive_share=0.5))
    assert shared.turn == alone.turn
    assert shared.decode_per_prefill < alone.decode_per_prefill


def test_a_prefill_node_serves_no_more_for_decode_nodes_that_it_cannot_keep_busy() -> None:
    ratio = ratio_of(Traffic(prompt_tokens=8000, answer_tokens=300))
    assert ratio.per_minute(1) < ratio.per_minute(2)
    assert ratio.per_minute(3) == ratio.per_minute(9) == pytest.approx(60 / ratio.prefill)


def test_a_prefill_node_that_would_starve_its_decode_nodes_is_told() -> None:
    assert warnings(4, "prompt_tokens: 8000, answer_tokens: 3000") == []
    (found,) = warnings(4, "prompt_tokens: 8000, answer_tokens: 300")
    assert found.path == "traffic"
    assert "prefill/0 feeds 4 decode nodes and keeps 2 of them busy" in found.message
    assert found.hint == "2 prefill nodes would feed 4 decode nodes"


def test_more_callers_than_the_cells_serve_are_told() -> None:
    (found,) = warnings(2, "prompt_tokens: 8000, answer_tokens: 3000, requests_per_minute: 100")
    assert found.path == "traffic.requests_per_minute"
    assert warnings(2, "prompt_tokens: 8000, answer_tokens: 3000, requests_per_minute: 5") == []


def test_the_ratio_is_told_only_where_the_file_says_what_requests_are_like() -> None:
    assert told(parse_fleet(edited()).fleet) is None
    text = edited() + "traffic: {prompt_tokens: 8000, answer_tokens: 1000}\n"
    assert "a prefill node keeps 4 decode nodes busy" in (told(parse_fleet(text).fleet) or "")
