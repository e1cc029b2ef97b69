"""What HAProxy reads from a request: its key, its path, its parameters."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.routing.harness import KEYS, LEFT_OUT, Router, router, until


@pytest.fixture(scope="module")
def r() -> Iterator[Router]:
    with router(cells=1) as running:
        yield running


# The keys have names here: pytest tells a test's id to the environment of every process started in it, HAProxy too,
# where test_keys_are_in_no_file_no_log_and_no_process_list would find them.
@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer wrong",
        "bearer chat",
        pytest.param(f"Basic {KEYS['chat']}", id="another scheme"),
        pytest.param(KEYS["chat"], id="no scheme"),
        pytest.param(f"Bearer {KEYS['chat'][:-1]}", id="a key cut short"),
    ],
)
def test_without_a_known_key_there_is_only_a_401(r: Router, authorization: str | None) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    before = len(r.cells[0].requests) + len(r.native.requests)
    response = httpx.post(f"{r.url}/v1/chat/completions", json={"max_tokens": 1}, headers=headers, trust_env=False)
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"] == "Bearer"
    assert len(r.cells[0].requests) + len(r.native.requests) == before


def test_a_401_comes_before_the_body_is_sent(r: Router) -> None:
    with socket.create_connection((r.config.listen_host, r.config.listen_port), timeout=10) as caller:
        caller.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5000000\r\n\r\n")
        assert caller.recv(12) == b"HTTP/1.1 401"


def test_the_key_does_not_reach_the_servers(r: Router) -> None:
    assert r.post().status_code == r.post(channel="batch").status_code == 200
    for backend in (r.cells[0], r.native):
        headers = {name.lower() for name in backend.requests[-1]["headers"]}
        assert "authorization" not in headers


def test_keys_are_in_no_file_no_log_and_no_process_list(r: Router) -> None:
    r.post()
    r.send(b"{", channel="vip")
    httpx.get(f"{r.url}/v1/models?key={KEYS['chat']}", headers={"authorization": "Bearer nope-4711"}, trust_env=False)
    until(lambda: "401" in r.log, "the refusal is logged")
    texts = [path.read_text(errors="replace") for path in r.directory.iterdir() if path.is_file()]
    texts.append(subprocess.run(["ps", "axeww"], capture_output=True, text=True, check=True).stdout)
    texts.append(r.api._ask(f"show map {r.directory}/keys.map"))
    for secret in (*KEYS.values(), "nope-4711"):
        assert not any(secret in text for text in texts)


def test_health_needs_no_key(r: Router) -> None:
    response = httpx.get(f"{r.url}/health", trust_env=False)
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_health_fails_when_nothing_serves() -> None:
    with router(cells=1, native=False) as alone:
        alone.decodes[0].stop()
        until(lambda: httpx.get(f"{alone.url}/health", trust_env=False).status_code == 503, "health fails")
        assert alone.post().status_code == 503


@pytest.mark.parametrize(
    "path", ["/", "/add_worker", "/metrics", "/pd/decode", "/v1", "/v1/../add_worker", "/v1/%2e%2e/x"]
)
def test_paths_outside_of_v1_do_not_exist(r: Router, path: str) -> None:
    with socket.create_connection((r.config.listen_host, r.config.listen_port), timeout=10) as caller:
        caller.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEYS['chat']}\r\n\r\n".encode())
        assert caller.recv(12) == b"HTTP/1.1 404"


def test_other_paths_go_native(r: Router) -> None:
    headers = {"authorization": f"Bearer {KEYS['chat']}"}
    response = httpx.get(f"{r.url}/v1/models", headers=headers, trust_env=False)
    assert response.headers["x-gpufleet-served-by"] == "native"
    assert r.post(path="/v1/embeddings").headers["x-gpufleet-served-by"] == "native"


@pytest.mark.parametrize("stream", [True, False])
def test_chat_goes_to_a_cell_streamed_or_not(r: Router, stream: bool) -> None:
    assert r.served_by(stream=stream) == "cell-decode-0"


CANNOT: list[dict[str, Any]] = [
    {"n": 2},
    {"best_of": 3},
    {"seed": 7},
    {"seed": 7, "temperature": 0.7},
    {"min_p": 0.1},
    {"min_tokens": 5},
    {"frequency_penalty": 0.5},
    {"frequency_penalty": -0.5},
    {"presence_penalty": 1},
    {"repetition_penalty": 1.1},
    {"logit_bias": {"50256": -100}},
    {"stop_token_ids": [1]},
    {"bad_words": ["x"]},
    {"allowed_token_ids": [1, 2]},
    {"use_beam_search": True},
    {"prompt_logprobs": 1},
    {"skip_special_tokens": False},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}},
    {"structured_outputs": {"regex": "a+"}},
    {"guided_json": {"type": "object"}},
    {"guided_choice": ["a", "b"]},
    {"guided_regex": "a+"},
    {"max_tokens": LEFT_OUT},
    {"max_tokens": None},
]
CAN: list[dict[str, Any]] = [
    {},
    {"n": 1},
    {"n": None},
    {"seed": 7, "temperature": 0},
    {"seed": None},
    {"min_p": 0.0},
    {"frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1.0},
    {"logit_bias": {}, "stop_token_ids": [], "bad_words": []},
    {"use_beam_search": False, "skip_special_tokens": True},
    {"response_format": {"type": "text"}},
    {"temperature": 0.7, "top_p": 0.9, "top_k": 40},
    {"stop": ["\n"]},
    {"logprobs": True, "top_logprobs": 2},
    {"max_tokens": LEFT_OUT, "max_completion_tokens": 9},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
    {"text": 'say {"n": 2, "seed": 5, "logit_bias": {"1": 2}}'},
    {"text": "a\0b"},
]


@pytest.mark.parametrize("fields", CANNOT, ids=lambda fields: " ".join(map(str, fields)))
def test_what_tilert_would_refuse_or_cut_goes_native(r: Router, fields: dict[str, Any]) -> None:
    assert r.served_by(**fields) == "native"


@pytest.mark.parametrize("fields", CAN, ids=lambda fields: " ".join(map(str, fields)) or "plain")
def test_what_tilert_can_do_goes_to_a_cell(r: Router, fields: dict[str, Any]) -> None:
    assert r.served_by(**fields) == "cell-decode-0"


@pytest.mark.parametrize(
    ("fields", "server"),
    [
        ({"prompt": "hi"}, "cell-decode-0"),
        ({"prompt": "hi", "stream": True}, "native"),
        ({"prompt": ["a", "b"]}, "native"),
        ({"prompt": [1, 2]}, "native"),
        ({"prompt": "hi", "echo": True}, "native"),
        ({"prompt": "hi", "logprobs": 1}, "native"),
        ({"prompt": "hi", "suffix": "x"}, "native"),
    ],
)
def test_plain_completions_go_to_a_cell_the_rest_native(r: Router, fields: dict[str, Any], server: str) -> None:
    body = {"model": "glm5", "max_tokens": 4, **fields}
    response = r.send(json.dumps(body).encode(), path="/v1/completions")
    assert response.headers["x-gpufleet-served-by"] == server


def test_a_whole_context_of_text_is_read_to_its_end(r: Router) -> None:
    assert r.served_by(text="word " * 180_000) == "cell-decode-0"
    assert r.served_by(text="word " * 180_000, n=2) == "native"
    assert r.cells[0].texts()[-1] == "word " * 180_000


def test_a_body_that_cannot_be_read_to_its_end_goes_native(r: Router) -> None:
    assert r.served_by(text="word " * 250_000) == "native"
    assert r.native.texts()[-1] == "word " * 250_000


def test_a_chunked_body_is_read_too(r: Router) -> None:
    def pieces(words: int) -> Iterator[bytes]:
        yield b'{"messages":[{"role":"user","content":"'
        for _ in range(words // 1000):
            yield b"word " * 1000
        yield b'"}],"max_tokens":4}'

    assert r.send(pieces(1000)).headers["x-gpufleet-served-by"] == "cell-decode-0"
    assert r.send(pieces(250_000)).headers["x-gpufleet-served-by"] == "native"


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff\xfe", b'{"max_tokens":'])
def test_a_body_that_is_no_json_is_for_vllm_to_refuse(r: Router, body: bytes) -> None:
    assert r.send(body).headers["x-gpufleet-served-by"] == "native"


def test_without_max_tokens_may_be_kept_on_tilert() -> None:
    with router(cells=1, without_max_tokens_native=False) as running:
        assert running.served_by(max_tokens=LEFT_OUT) == "cell-decode-0"


def test_without_native_servers_everything_goes_to_the_cells() -> None:
    with router(cells=1, native=False) as running:
        assert running.served_by(n=2, max_tokens=LEFT_OUT) == "cell-decode-0"
        assert running.served_by(channel="batch") == "cell-decode-0"


def test_without_cells_everything_goes_native() -> None:
    with router(cells=0) as running:
        assert running.served_by() == "native"


def test_a_broken_answer_is_not_asked_again(r: Router) -> None:
    def broken(handler: Any) -> bool:
        handler.close_connection = True
        return True

    r.cells[0].script = broken
    before = len(r.cells[0].requests)
    response = r.post()
    r.cells[0].script = lambda _: False
    assert response.status_code == 502
    assert response.json()["error"]["code"] == "server_closed"
    assert len(r.cells[0].requests) == before + 1


def test_the_wait_in_the_queue_is_told(r: Router) -> None:
    r.cells[0].gate.clear()
    busy = r.background("busy")
    until(lambda: r.cells[0].running == 1, "the cell is busy")
    waiting = r.background("waits")
    until(lambda: r.api.queued() == 1, "one waits")
    r.cells[0].gate.set()
    assert int(waiting.result().headers["x-gpufleet-queue-ms"]) > 0
    assert int(busy.result().headers["x-gpufleet-queue-ms"]) >= 0


@pytest.mark.parametrize("channel", ["chat", "batch"])
def test_the_official_openai_client_streams_and_does_not(r: Router, channel: str) -> None:
    client = openai.OpenAI(base_url=f"{r.url}/v1", api_key=KEYS[channel], max_retries=0)
    question: Any = [{"role": "user", "content": "hi"}]
    whole = client.chat.completions.create(model="glm5", messages=question, max_tokens=8)
    assert whole.choices[0].message.content == "hello world"
    stream = client.chat.completions.create(model="glm5", messages=question, max_tokens=8, stream=True)
    assert "".join(event.choices[0].delta.content or "" for event in stream) == "hello world"


def test_the_official_openai_client_understands_a_refusal(r: Router) -> None:
    client = openai.OpenAI(base_url=f"{r.url}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError, match="no channel has this key"):
        client.models.list()


def test_metrics_are_on_a_private_socket_only(r: Router) -> None:
    transport = httpx.HTTPTransport(uds=str(r.directory / "metrics.sock"))
    with httpx.Client(transport=transport) as client:
        assert "haproxy_server_current_sessions" in client.get("http://x/metrics").text
    for name in ("metrics.sock", "haproxy.sock"):
        assert (r.directory / name).stat().st_mode & 0o777 == 0o600
