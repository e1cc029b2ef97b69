"""The client behind ``ask``: answers whole, or an error that says why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from gpufleet.errors import EndpointFailed
from gpufleet.routing.client import Endpoint, ask, chat_once
from gpufleet.routing.errors import CutAnswer, Overloaded, Unauthorized
from gpufleet.routing.tls import certificate_only, fingerprint, self_signed
from tests.routing.harness import KEYS, Backend, Router, free_address, router, until


@pytest.fixture(scope="module")
def r() -> Iterator[Router]:
    with router(cells=1) as running:
        yield running


@pytest.fixture
def server() -> Iterator[Backend]:
    backend = Backend("plain").start()
    yield backend
    backend.stop()


def endpoint(url: str, **changes: Any) -> Endpoint:
    return Endpoint(**{"url": url, "key": KEYS["chat"], "model": "glm5", "timeout_s": 20.0, **changes})


def direct(server: Backend, **changes: Any) -> Endpoint:
    return endpoint(f"http://{server.address[0]}:{server.address[1]}", **changes)


def test_an_answer_comes_piece_by_piece_and_tells_its_way(r: Router) -> None:
    pieces: list[str] = []
    answer = ask(endpoint(r.url), "hi", on_text=pieces.append)
    assert pieces == ["hello ", "world"]
    assert (answer.text, answer.served_by, answer.finish_reason) == ("hello world", "cell-decode-0", "stop")
    assert 0 < answer.ttft_s <= answer.total_s
    assert answer.queue_ms is not None
    assert r.cells[0].requests[-1]["body"]["stream_options"] == {"include_usage": True}


def test_one_answer_in_one_piece(r: Router) -> None:
    answer = chat_once(endpoint(r.url, key=KEYS["batch"]), "hi")
    assert (answer.text, answer.served_by, answer.tokens) == ("hello world", "native", 2)


@pytest.mark.parametrize("call", [ask, chat_once])
def test_an_unknown_key(r: Router, call: Any) -> None:
    with pytest.raises(Unauthorized, match="does not know this key") as caught:
        call(endpoint(r.url, key="wrong-key-123"), "hi")
    assert "wrong-key-123" not in repr(caught.value)


def test_a_key_does_not_show_in_the_endpoints_repr() -> None:
    assert KEYS["chat"] not in repr(endpoint("http://x"))


@pytest.mark.parametrize("call", [ask, chat_once])
def test_nothing_listens(call: Any) -> None:
    host, port = free_address()
    with pytest.raises(EndpointFailed, match="nothing answers at the endpoint") as caught:
        call(endpoint(f"http://{host}:{port}"), "hi")
    assert "status" in (caught.value.hint or "")


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("call", [ask, chat_once])
def test_no_room(server: Backend, call: Any, status: int) -> None:
    server.script = lambda handler: handler._json(status, {"error": "all decode nodes busy"}) or True
    with pytest.raises(Overloaded, match="all decode nodes busy"):
        call(direct(server), "hi")


def test_another_refusal_is_told_in_the_servers_words(server: Backend) -> None:
    server.script = lambda handler: handler._json(400, {"error": {"message": "prompt too long"}}) or True
    with pytest.raises(EndpointFailed, match="answered 400: prompt too long"):
        ask(direct(server), "hi")


def events(*lines: str, done: bool = True) -> Any:
    def script(handler: BaseHTTPRequestHandler) -> bool:
        assert hasattr(handler, "chunk")
        handler.start_stream()
        for line in lines:
            handler.chunk(f"data: {line}\n\n".encode())
        if done:
            handler.chunk(b"data: [DONE]\n\n")
        handler.chunk(b"")
        return True

    return script


def delta(text: str = "", finish: str | None = None, **fields: Any) -> str:
    return json.dumps({"choices": [{"delta": {"content": text, **fields}, "finish_reason": finish}]})


def test_an_error_inside_a_stream_is_an_error(server: Backend) -> None:
    server.script = events(delta("par"), json.dumps({"error": "decode stream failed", "rid": "x"}))
    with pytest.raises(EndpointFailed, match="broke off with an error: decode stream failed"):
        ask(direct(server), "hi")


def test_a_stream_without_a_finish_reason_is_cut(server: Backend) -> None:
    server.script = events(delta("par"))
    with pytest.raises(CutAnswer, match="no finish reason"):
        ask(direct(server), "hi")


def test_a_stream_without_its_end_mark_is_cut(server: Backend) -> None:
    server.script = events(delta("par"), delta("", "stop"), done=False)
    with pytest.raises(CutAnswer, match=r"no \[DONE\]"):
        ask(direct(server), "hi")


def test_a_decode_error_dressed_as_text_is_an_error(server: Backend) -> None:
    server.script = events(delta("par"), delta("\n[decode error: out of memory]"), delta("", "stop"))
    with pytest.raises(CutAnswer, match=r"decode node failed: .decode error: out of memory"):
        ask(direct(server), "hi")


def test_a_connection_that_breaks_in_the_middle_is_a_cut_answer(server: Backend) -> None:
    def script(handler: Any) -> bool:
        handler.start_stream()
        handler.event({"content": "par"})
        handler.close_connection = True
        return True

    server.script = script
    with pytest.raises(CutAnswer):
        ask(direct(server), "hi")


def test_a_server_that_says_nothing_runs_into_the_time_limit(server: Backend) -> None:
    server.gate.clear()
    with pytest.raises(EndpointFailed, match="did not answer in time"):
        chat_once(direct(server, timeout_s=0.3), "hi")


@pytest.mark.parametrize("line", ["{", "[1]", '"x"'])
def test_nonsense_in_a_stream(server: Backend, line: str) -> None:
    server.script = events(line)
    with pytest.raises(EndpointFailed, match="the stream holds something that is no"):
        ask(direct(server), "hi")


def test_nonsense_instead_of_a_completion(server: Backend) -> None:
    server.script = lambda handler: handler._json(200, {"choices": []}) or True
    with pytest.raises(EndpointFailed, match="no chat completion"):
        chat_once(direct(server), "hi")


def test_usage_and_reasoning_are_counted(server: Backend) -> None:
    usage = json.dumps({"choices": [], "usage": {"completion_tokens": 40}})
    server.script = events(delta(reasoning_content="thinking "), delta("four"), delta("", "length"), usage)
    thoughts: list[str] = []
    answer = ask(direct(server), "2+2", on_reasoning=thoughts.append)
    assert (answer.reasoning, answer.text, answer.tokens) == ("thinking ", "four", 40)
    assert thoughts == ["thinking "]
    assert answer.finish_reason == "length"


def test_tls_is_pinned_to_the_one_certificate() -> None:
    now = datetime.now(UTC)
    pem, other = self_signed("127.0.0.1", now), self_signed("127.0.0.1", now)
    with router(cells=1, pem=pem) as secure:
        assert ask(endpoint(secure.url, certificate=certificate_only(pem)), "hi").text == "hello world"
        with pytest.raises(EndpointFailed, match="another certificate than the one pinned"):
            ask(endpoint(secure.url, certificate=certificate_only(other)), "hi")
        with pytest.raises(EndpointFailed, match="another certificate"):
            ask(endpoint(secure.url), "hi")
        assert fingerprint(pem) != fingerprint(other)


def test_the_router_offers_no_old_tls() -> None:
    import socket
    import ssl
    import warnings

    with router(cells=1, pem=self_signed("127.0.0.1", datetime.now(UTC))) as secure:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        where = (secure.config.listen_host, secure.config.listen_port)
        with socket.create_connection(where, timeout=10) as plain, pytest.raises((ssl.SSLError, ConnectionError)):
            context.wrap_socket(plain)


def test_the_server_goes_away_while_a_request_waits() -> None:
    with router(cells=1, native=False, queue_timeout_s=1) as alone:
        alone.cells[0].gate.clear()
        busy = alone.background("busy")
        until(lambda: alone.cells[0].running == 1, "the cell is busy")
        with pytest.raises(Overloaded, match="waited 1 s in the queue"):
            ask(endpoint(alone.url), "hi")
        alone.cells[0].gate.set()
        busy.result()
