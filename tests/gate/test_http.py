"""The proxy as peers see it: what passes, byte for byte, and what is not HTTP/1.1 as both sides understand it."""

from __future__ import annotations

import asyncio

import pytest

from gpufleet.gate import http1
from tests.gate.scripted import Stage, read_answer
from tests.gate.test_exclusion import play


def test_requests_follow_each_other_on_one_connection() -> None:
    async def scenario(s: Stage) -> None:
        reader, writer = await s.send(b"GET /health HTTP/1.1\r\n\r\n")
        await (await s.vllm.request(1)).answer(200, b"one")
        assert (await read_answer(reader)).body == b"one"
        writer.write(b"GET /version HTTP/1.1\r\n\r\n")
        second = await s.vllm.request(2)
        assert second.head.startswith("GET /version ")
        await second.answer(404, b"two")
        assert (await read_answer(reader)).body == b"two"

    play(scenario)


def test_a_chunked_body_is_read_before_it_passes() -> None:
    async def scenario(s: Stage) -> None:
        head = b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        await s.send(head + b'5\r\n{"a":\r\n2;x=y\r\n1}\r\n0\r\n\r\n')
        assert (await s.vllm.request(1)).body == {"a": 1}

    play(scenario)


def test_a_client_that_waits_to_be_told_is_told() -> None:
    async def scenario(s: Stage) -> None:
        fields = b"Content-Length: 7\r\nExpect: 100-continue\r\n"
        reader, writer = await s.send(b"POST /v1/completions HTTP/1.1\r\n" + fields + b"\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b'{"a":1}')
        assert "xpect" not in (await s.vllm.request(1)).head

    play(scenario)


def test_pieces_of_a_stream_pass_as_they_come() -> None:
    async def scenario(s: Stage) -> None:
        reader, _ = await s.send(b"GET /stream HTTP/1.1\r\n\r\n")
        asked = await s.vllm.request(1)
        asked.writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        for piece in (b"3\r\none\r\n", b"3\r\ntwo\r\n", b"0\r\n\r\n"):
            asked.writer.write(piece)
            assert await asyncio.wait_for(reader.readexactly(len(piece)), 10) == piece

    play(scenario)


def test_an_answer_that_is_cut_looks_cut_to_the_client() -> None:
    async def scenario(s: Stage) -> None:
        reader, _ = await s.send(b"GET /x HTTP/1.1\r\n\r\n")
        asked = await s.vllm.request(1)
        asked.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        await reader.readuntil(b"half")
        asked.hang_up()
        with pytest.raises((EOFError, ConnectionError)):
            await asyncio.wait_for(reader.readexactly(1), 10)

    play(scenario)


def test_a_vllm_that_is_not_there_is_a_502() -> None:
    async def scenario(s: Stage) -> None:
        s.vllm.stop()
        answer = await s.get("/v1/models")
        assert (answer.status, answer.code) == (502, "vllm-unreachable")

    play(scenario)


@pytest.mark.parametrize(
    "raw",
    [
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET / HTTP/1.1\r\n folded: x\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
)
def test_what_two_readers_could_take_differently_is_refused(raw: bytes) -> None:
    async def scenario(s: Stage) -> None:
        reader, _ = await s.send(raw)
        assert (await read_answer(reader)).code == "bad-http"
        assert not s.vllm.asked

    play(scenario)


@pytest.mark.parametrize("step", [1, 2, 3, 100])
def test_a_chunked_body_ends_where_it_ends_however_it_is_cut(step: int) -> None:
    body = b"4\r\nwiki\r\nA;x=1\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"
    stream = body + b"HTTP/1.1 next"
    framing, taken = http1.Chunked(), 0
    for at in range(0, len(stream), step):
        taken += framing.feed(stream[at : at + step])
        if framing.over:
            break
    assert framing.over
    assert taken == len(body)
