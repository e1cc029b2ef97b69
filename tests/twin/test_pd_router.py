"""TileRT's own router: one prefill, decode nodes, and its ways to fail."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.twin.serving import Machines, Server, chat_body, machines_in, text_of, until


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with machines_in(tmp_path) as started:
        yield started


class Cell:
    """Prefill, decode and the router between them."""

    def __init__(self, machines: Machines, *argv: object, tps: float = 2000, **env: str) -> None:
        prefill, decode = machines.prefill(), machines.decode(node={"pace": {"decode_tps": tps}})
        self.prefill, self.decode = prefill.ready(), decode.ready()
        self.router = machines.pd_router(prefill, decode, argv=argv, **env).ready()

    def prefills(self) -> int:
        """How many requests the prefill node has taken for TileRT."""
        return self.prefill.log.count("claimed")

    def free(self) -> bool:
        """Whether neither router nor node is busy."""
        status = self.decode.get("/decode_status").json()["status"]
        return bool(status == "idle" and self.router.get("/health").json()["decode_free"] == 1)


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    """One cell for all tests that leave it as it was."""
    with machines_in(tmp_path_factory.mktemp("cell")) as started:
        yield Cell(started)


CASES: dict[str, tuple[tuple[str, ...], dict[str, str], int, str]] = {
    "an unknown flag": (("--nope",), {}, 2, "unrecognized arguments: --nope"),
    "no model path for a parser": ((), {}, 1, "--parser requires --model-path (tokenizer)"),
    "a node without ports": (("--parser", "none", "--decode", "127.0.0.1"), {}, 1, "ValueError"),
    "a tokenizer that is not there": (("--parser", "none", "--model-path", "/none"), {}, 1, "Can't load tokenizer"),
    "tilert not installed": (("--parser", "none"), {"TWIN_PACKAGES": "vllm==0.26.0"}, 1, "No module named 'tilert'"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_router_refuses(machines: Machines, case: str) -> None:
    argv, env, code, message = CASES[case]
    ended = machines.run("pd_router", "--vllm-url", "http://x:8000", "--decode", "d:5556:5557", *argv, env=env)
    assert ended.returncode == code
    assert message in ended.stderr


def test_sampling_defaults_that_decode_cannot_honour_end_the_router(machines: Machines) -> None:
    model = machines.model()
    (Path(model) / "generation_config.json").write_text('{"repetition_penalty": 1.05}')
    ended = machines.run(
        "pd_router", "--vllm-url", "http://x:8000", "--decode", "d:1:2", "--model-path", model, "--parser", "none"
    )
    assert ended.returncode == 1
    assert "cannot serve with these sampling defaults" in ended.stderr


def test_it_calls_itself_healthy_whatever_is_behind_it(machines: Machines) -> None:
    address, root = machines.node()
    flags = ("--vllm-url", "http://127.67.0.9:8000", "--decode", "127.67.0.9:5556:5557", "--parser", "none")
    router = machines.start("pd_router", address, root, 23333, *flags).ready()
    assert router.get("/health").json() == {"status": "ok", "decode_free": 1}
    assert router.chat("x").status_code == 502


def test_an_answer_comes_through_both_nodes(cell: Cell) -> None:
    reply = cell.router.chat("which way?").json()
    assert reply["choices"][0]["message"]["content"] == "You said: which way?"
    assert reply["usage"]["total_tokens"] == reply["usage"]["prompt_tokens"] + reply["usage"]["completion_tokens"]
    assert {"prefill", "wire_wait", "decode", "mtp_accept_mean"} <= reply["pd_timing_ms"].keys()
    assert "REQSTAT" in cell.decode.log


def test_a_stream_says_the_same_as_a_whole_answer(cell: Cell) -> None:
    events = cell.router.stream("count to 30", stream_options={"include_usage": True})
    assert text_of(events) == cell.router.say("count to 30")
    assert events[0]["choices"][0]["delta"] == {"role": "assistant"}
    assert events[-3]["choices"][0]["finish_reason"] == "stop"
    assert events[-2]["usage"]["completion_tokens"] == 30
    assert events[-1] == "[DONE]"


def test_usage_is_streamed_only_when_asked_for(cell: Cell) -> None:
    assert not any("usage" in event for event in cell.router.stream("hi") if isinstance(event, dict))


def test_max_tokens_defaults_to_256(cell: Cell) -> None:
    reply = cell.router.chat("count to 400").json()
    assert reply["usage"]["completion_tokens"] == 256
    assert reply["choices"][0]["finish_reason"] == "length"


def test_stop_strings_are_cut_by_the_router(cell: Cell) -> None:
    assert cell.router.say("count to 100", stop=["7 8"]) == "1 2 3 4 5 6 "
    assert text_of(cell.router.stream("count to 100", stop=["7 8"])) == "1 2 3 4 5 6 "
    until(cell.free, "the node is free again")


def test_plain_completions_are_not_streamed(cell: Cell) -> None:
    whole = cell.router.post("/v1/completions", {"model": "glm5", "prompt": "count to 3"})
    assert whole.json()["choices"][0]["text"] == "1 2 3"
    streamed = cell.router.post("/v1/completions", {"model": "glm5", "prompt": "x", "stream": True})
    assert streamed.status_code == 400


@pytest.mark.parametrize("path", ["/v1/models", "/metrics"])
def test_it_has_neither_models_nor_metrics(cell: Cell, path: str) -> None:
    assert cell.router.get(path).status_code == 404


@pytest.mark.parametrize(
    "field",
    [
        {"seed": 7, "temperature": 0.5},
        {"n": 2},
        {"min_p": 0.1},
        {"logit_bias": {"1": 1}},
        {"frequency_penalty": 0.5},
        {"presence_penalty": 0.5},
        {"repetition_penalty": 1.1},
        {"stop_token_ids": [1]},
        {"min_tokens": 3},
        {"structured_outputs": {"regex": "a"}},
    ],
)
def test_what_tilert_cannot_do_is_refused_before_the_prefill(cell: Cell, field: dict[str, Any]) -> None:
    before = cell.prefills()
    reply = cell.router.chat("x", **field)
    assert (reply.status_code, reply.json()["error_type"]) == (501, "capability_unavailable")
    assert cell.prefills() == before


@pytest.mark.parametrize("field", [{"seed": 7, "temperature": 0}, {"n": 1}, {"ignore_eos": False}, {"stop": []}])
def test_neutral_values_pass(cell: Cell, field: dict[str, Any]) -> None:
    assert cell.router.chat("x", **field).status_code == 200


@pytest.mark.parametrize("field", [{"max_tokens": 0}, {"temperature": "warm"}, {"stop": [""]}, {"temperature": -1}])
def test_values_that_make_no_sense_are_refused(cell: Cell, field: dict[str, Any]) -> None:
    reply = cell.router.chat("x", **field)
    assert (reply.status_code, reply.json()["error_type"]) == (400, "invalid_parameter")


def test_a_response_format_is_refused_only_after_the_prefill(cell: Cell) -> None:
    before = cell.prefills()
    reply = cell.router.chat("x", response_format={"type": "json_object"})
    assert (reply.status_code, reply.json()["error_type"]) == (501, "grammar_unsupported")
    assert cell.prefills() == before + 1


def test_what_vllm_refuses_is_passed_on(cell: Cell) -> None:
    reply = cell.router.post("/v1/chat/completions", chat_body("x") | {"model": "other"})
    assert reply.status_code == reply.json()["error"]["code"] == 404


def test_a_second_request_is_refused_at_once(machines: Machines) -> None:
    cell = Cell(machines, tps=50)
    events = cell.router.events("count to 5000")
    next(events)
    refused = cell.router.chat("me too")
    assert (refused.status_code, refused.json()) == (429, {"error": "all decode nodes busy"})
    events.close()


def test_with_a_queue_timeout_it_waits_for_a_node(machines: Machines) -> None:
    cell = Cell(machines, "--queue-timeout", "20", tps=200)
    with ThreadPoolExecutor(3) as pool:
        texts = [f"number {n} of three" for n in range(3)]
        assert list(pool.map(cell.router.say, texts)) == [f"You said: {text}" for text in texts]


def test_a_stream_whose_client_hangs_up_is_cancelled(machines: Machines) -> None:
    cell = Cell(machines, tps=50)
    events = cell.router.events("count to 5000", max_tokens=5000)
    next(events)
    assert not cell.free()
    events.close()
    until(cell.free, "the node is free again")


def test_a_client_that_hangs_up_without_streaming_keeps_the_node_busy(machines: Machines) -> None:
    cell = Cell(machines, tps=50)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{cell.router.url}/v1/chat/completions", json=chat_body("count to 60"), timeout=0.3)
    assert not cell.free()
    until(cell.free, "the answer was generated to its end")
    assert "completion=60" in cell.decode.log


def test_a_dead_decode_node_costs_a_prefill_and_stays_in_the_list(machines: Machines) -> None:
    cell = Cell(machines)
    cell.decode.stop()
    assert cell.router.chat("x").status_code == 502
    assert cell.prefills() == 1
    assert cell.router.get("/health").json() == {"status": "ok", "decode_free": 1}


def test_a_node_that_dies_in_the_middle_of_a_stream_shows_as_an_event(machines: Machines) -> None:
    cell = Cell(machines, tps=50)
    events = cell.router.events("count to 5000", max_tokens=5000)
    seen = [next(events), next(events)]
    cell.decode.process.kill()
    seen += list(events)
    assert seen[-1] == "[DONE]"
    assert seen[-2]["error"]["error_type"] in ("decode_stream_failed", "decode_truncated")


def test_kv_that_never_comes_is_a_502(machines: Machines) -> None:
    """The decode node waits two minutes for it; here the node is told to give up by a cancel."""
    prefill, decode = machines.prefill(TILERT_PD_SENDERS="4").ready(), machines.decode().ready()
    router = machines.pd_router(prefill, decode).ready()
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(router.chat, "never")
        status = until(lambda: decode.get("/decode_status").json()["current_rid"], "the node waits for KV")
        decode.post("/pd/cancel", {"rid": status})
        assert (reply.result().status_code, reply.result().json()["error_type"]) == (499, "request_cancelled")


def test_it_tokenises_by_itself_once_vllm_agrees(machines: Machines) -> None:
    cell = Cell(machines, TILERT_ROUTER_TOKENIZE="1")
    until(lambda: cell.router.get("/pool_status").json()["router_tokenize"]["on"], "the self-check has passed")
    assert cell.router.say("own tokens") == "You said: own tokens"
    assert "claimed cmpl-" in cell.prefill.log


def test_without_a_tokenizer_there_is_no_text(machines: Machines) -> None:
    prefill, decode = machines.prefill().ready(), machines.decode().ready()
    address, root = machines.node()
    flags = ("--vllm-url", prefill.url, "--decode", f"{decode.host}:5556:5557", "--parser", "none")
    router = machines.start("pd_router", address, root, 23333, *flags).ready()
    assert router.chat("x").json()["choices"][0]["message"]["content"] is None
    assert "[DONE]" not in list(router.events("x"))
    assert router.chat("x", stop=["a"]).status_code == 501


def test_two_decode_nodes_behind_one_prefill_node_mix_their_requests(machines: Machines) -> None:
    """What pd_router allows and a cell forbids."""
    prefill = machines.prefill(node={"pace": {"prefill_tps": 2000}})
    one, two = machines.decode(), machines.decode()
    for server in (prefill, one, two):
        server.ready()
    router = machines.pd_router(prefill, one, two).ready()

    def whole(letter: str) -> bool:
        text = " ".join([letter * 4] * 40)
        return router.say(text) == f"You said: {text}"

    with ThreadPoolExecutor(3) as pool:
        before = pool.submit(prefill.chat, "word " * 2000, max_tokens=1)
        until(lambda: busy(prefill), "a long prompt holds the engine")
        answers = list(pool.map(whole, ("a", "b")))
        before.result()
    assert not all(answers)


def busy(server: Server) -> bool:
    """Whether the server runs a request."""
    return server.get("/load").json()["server_load"] == 1
