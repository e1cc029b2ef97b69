"""How a vLLM server answers."""

from __future__ import annotations

import itertools
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gpufleet.twin import answers
from tests.twin.serving import Machines, Server, chat_body, machines_in, text_of, until


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with machines_in(tmp_path) as started:
        yield started


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests that leave it as it was."""
    with machines_in(tmp_path_factory.mktemp("server")) as started:
        yield started.vllm("--max-model-len", "200").ready()


def running(server: Server) -> float:
    line = next(line for line in server.get("/metrics").text.splitlines() if "num_requests_running{" in line)
    return float(line.split()[-1])


def test_models_are_listed_by_every_served_name(machines: Machines) -> None:
    server = machines.vllm("--served-model-name", "one", "two").ready()
    assert [model["id"] for model in server.get("/v1/models").json()["data"]] == ["one", "two"]


def test_an_answer_repeats_the_question(server: Server) -> None:
    reply = server.chat("is this mine? ünï 漢字 🙂").json()
    assert reply["choices"][0]["message"]["content"] == "You said: is this mine? ünï 漢字 🙂"
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["usage"]["total_tokens"] == reply["usage"]["prompt_tokens"] + reply["usage"]["completion_tokens"]


def test_counting_gives_one_token_per_number(server: Server) -> None:
    reply = server.chat("please count to 12").json()
    assert reply["choices"][0]["message"]["content"] == "1 2 3 4 5 6 7 8 9 10 11 12"
    assert reply["usage"]["completion_tokens"] == 12


def test_max_tokens_cuts_the_answer(server: Server) -> None:
    choice = server.chat("count to 50", max_tokens=5).json()["choices"][0]
    assert choice["message"]["content"] == "1 2 3 4 5"
    assert choice["finish_reason"] == "length"


def test_a_stop_string_ends_the_answer(server: Server) -> None:
    choice = server.chat("count to 50", stop=[" 4"]).json()["choices"][0]
    assert choice["message"]["content"] == "1 2 3"
    assert choice["finish_reason"] == "stop"


def test_a_stream_says_the_same_as_a_whole_answer(server: Server) -> None:
    events = server.stream("count to 9", stream_options={"include_usage": True})
    assert text_of(events) == server.say("count to 9")
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert events[-3]["choices"][0]["finish_reason"] == "stop"
    assert events[-2]["usage"]["completion_tokens"] == 9
    assert events[-1] == "[DONE]"


def test_plain_completions_take_text_and_token_ids_alike(server: Server) -> None:
    text = server.post("/v1/completions", {"model": "glm5", "prompt": "count to 4"}).json()
    ids = server.post("/v1/completions", {"model": "glm5", "prompt": answers.encode("count to 4")}).json()
    assert text["choices"][0]["text"] == ids["choices"][0]["text"] == "1 2 3 4"


def test_tokens_show_as_ids_in_log_probabilities(server: Server) -> None:
    reply = server.chat("count to 4", max_tokens=1, logprobs=True, top_logprobs=1).json()
    token = reply["choices"][0]["logprobs"]["content"][0]["token"]
    assert answers.decode([int(token.removeprefix("token_id:"))]) == "1"


def test_tokenize_counts_what_a_request_is_charged(server: Server) -> None:
    counted = server.post("/tokenize", {"messages": chat_body("hello there")["messages"]}).json()
    assert counted["count"] == server.chat("hello there").json()["usage"]["prompt_tokens"]
    assert counted["max_model_len"] == 200


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (chat_body("x") | {"model": "other"}, 404, "The model `other` does not exist."),
        (chat_body("word " * 300), 400, "maximum context length is 200 tokens"),
        (chat_body("x", max_tokens=199), 400, "maximum context length is 200 tokens"),
        (chat_body("x", max_tokens=0), 400, "max_tokens must be at least 1"),
        ({"model": "glm5"}, 400, "messages"),
    ],
)
def test_what_cannot_be_served_is_refused(server: Server, body: dict[str, object], status: int, message: str) -> None:
    reply = server.post("/v1/chat/completions", body)
    assert reply.status_code == reply.json()["error"]["code"] == status
    assert message in reply.json()["error"]["message"]


def test_paths_and_methods_it_does_not_know(server: Server) -> None:
    assert server.get("/nope").status_code == 404
    assert server.get("/v1/chat/completions").status_code == 405


def test_an_api_key_is_asked_for_under_v1_only(machines: Machines) -> None:
    server = machines.vllm(VLLM_API_KEY="secret").ready()
    assert server.get("/v1/models").status_code == 401
    header = {"authorization": "Bearer secret"}
    assert httpx.get(f"{server.url}/v1/models", headers=header).status_code == 200


def test_the_id_of_a_reply_is_the_id_of_the_request(server: Server) -> None:
    reply = server.post("/v1/chat/completions", chat_body("x"), headers={"x-request-id": "abc"})
    assert reply.json()["id"] == "chatcmpl-abc"


def test_a_client_that_hangs_up_frees_its_place(machines: Machines) -> None:
    server = machines.vllm(node={"pace": {"native_tps": 20}}).ready()
    events = server.events("count to 5000")
    next(events)
    assert running(server) == 1
    events.close()
    until(lambda: running(server) == 0, "the request is gone")


def test_a_request_that_is_not_streamed_is_aborted_too(machines: Machines) -> None:
    server = machines.vllm(node={"pace": {"native_tps": 20}}).ready()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/chat/completions", json=chat_body("count to 5000"), timeout=0.3)
    until(lambda: running(server) == 0, "the request is gone")


def test_a_prefill_stalls_the_answers_beside_it(machines: Machines) -> None:
    server = machines.vllm(node={"pace": {"native_tps": 100, "prefill_tps": 1000}}).ready()
    events = server.events("count to 5000")
    next(events)
    with ThreadPoolExecutor(1) as pool:
        long_prompt = pool.submit(server.chat, "word " * 1000, max_tokens=1)
        arrivals = []
        while not long_prompt.done():
            next(events)
            arrivals.append(time.monotonic())
        arrivals.extend(time.monotonic() for _ in itertools.islice(events, 3))
        events.close()
    gaps = [later - earlier for earlier, later in itertools.pairwise(arrivals)]
    assert max(gaps) > 0.5


def test_requests_with_a_lower_priority_value_go_first(machines: Machines) -> None:
    server = machines.vllm(
        "--scheduling-policy", "priority", "--max-num-seqs", "1", node={"pace": {"native_tps": 50}}
    ).ready()
    first = server.events("count to 40")
    next(first)
    finished: list[str] = []

    def ask(name: str, priority: int) -> None:
        server.chat("count to 2", priority=priority)
        finished.append(name)

    with ThreadPoolExecutor(2) as pool:
        pool.submit(ask, "late", 5)
        until(lambda: "num_requests_waiting{" in server.get("/metrics").text and waiting(server) == 1, "one waits")
        pool.submit(ask, "early", -5)
        until(lambda: waiting(server) == 2, "both wait")
        first.close()
    assert finished == ["early", "late"]


def waiting(server: Server) -> float:
    line = next(line for line in server.get("/metrics").text.splitlines() if "num_requests_waiting{" in line)
    return float(line.split()[-1])


def test_bodies_that_are_no_json_are_refused(server: Server) -> None:
    reply = httpx.post(f"{server.url}/v1/chat/completions", content=b"{nope")
    assert reply.status_code == 400
    assert json.loads(reply.text)["error"]["type"] == "BadRequestError"


def test_the_official_client_is_content(machines: Machines) -> None:
    server = machines.vllm().ready()
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any") as client:
        question: list[Any] = [{"role": "user", "content": "hello client"}]
        whole = client.chat.completions.create(model="glm5", messages=question)
        assert whole.choices[0].message.content == "You said: hello client"
        stream = client.chat.completions.create(model="glm5", messages=question, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "You said: hello client"
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="other", messages=question)
        assert [model.id for model in client.models.list()] == ["glm5"]


def test_a_http_1_0_client_gets_its_connection_closed(server: Server) -> None:
    with socket.create_connection((server.host, 8000), timeout=10) as sock:
        sock.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert b"200 OK" in b"".join(iter(lambda: sock.recv(4096), b""))


def test_many_requests_at_once_each_get_their_own_answer(server: Server) -> None:
    texts = [f"request number {number}" for number in range(30)]
    with ThreadPoolExecutor(15) as pool:
        assert list(pool.map(server.say, texts)) == [f"You said: {text}" for text in texts]
