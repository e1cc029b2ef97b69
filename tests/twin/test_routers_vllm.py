"""vllm-router: prefill on one pool, decode on the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.twin.serving import Machines, Server, chat_body, machines_in, text_of, until


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with machines_in(tmp_path) as started:
        yield started


@pytest.fixture
def pools(machines: Machines) -> tuple[Server, Server]:
    return machines.prefill().ready(), machines.native().ready()


CASES: dict[str, tuple[tuple[str, ...], int, str]] = {
    "an unknown flag": (("--nope",), 2, "unrecognized arguments: --nope"),
    "an unknown policy": (("--policy", "fair"), 2, "invalid choice: 'fair'"),
    "no prefill": (("--vllm-pd-disaggregation",), 1, "PD disaggregation mode requires --prefill"),
    "no decode": (("--vllm-pd-disaggregation", "--prefill", "http://p:1"), 1, "requires --decode"),
    "a bootstrap port that is none": (
        ("--vllm-pd-disaggregation", "--prefill", "http://p:1", "9a", "--decode", "http://d:1"),
        1,
        "Invalid bootstrap port: 9a",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_router_refuses(machines: Machines, case: str) -> None:
    argv, code, message = CASES[case]
    ended = machines.run("vllm_router", *argv)
    assert ended.returncode == code
    assert message in ended.stderr


def test_it_gives_up_on_workers_that_never_become_healthy(machines: Machines) -> None:
    flags = ("--vllm-pd-disaggregation", "--prefill", "http://127.67.0.9:8000", "--decode", "http://127.67.0.9:8001")
    ended = machines.run("vllm_router", *flags)
    assert ended.returncode == 1
    assert "Timeout 600s waiting for hosts" in ended.stderr


def test_it_listens_only_once_all_workers_are_healthy(machines: Machines) -> None:
    prefill = machines.prefill().ready()
    native = machines.native(node={"pace": {"load_seconds": 500}})
    router = machines.vllm_router([prefill], [native])
    assert not router.healthy()
    router.ready()
    assert native.healthy()


def test_an_answer_is_prefilled_here_and_decoded_there(machines: Machines, pools: tuple[Server, Server]) -> None:
    prefill, native = pools
    router = machines.vllm_router([prefill], [native]).ready()
    reply = router.chat("two legs", max_tokens=50).json()
    assert reply["choices"][0]["message"]["content"] == "You said: two legs"
    assert "nixl_xfer_time_seconds_count{" in native.get("/metrics").text
    fetched = next(line for line in native.get("/metrics").text.splitlines() if "nixl_xfer_time_seconds_count{" in line)
    assert fetched.endswith(" 1.0")


def test_streams_and_plain_completions_pass(machines: Machines, pools: tuple[Server, Server]) -> None:
    router = machines.vllm_router([pools[0]], [pools[1]]).ready()
    events = router.stream("count to 20")
    assert text_of(events) == " ".join(map(str, range(1, 21)))
    assert events[-1] == "[DONE]"
    whole = router.post("/v1/completions", {"model": "glm5", "prompt": "count to 3"})
    assert whole.json()["choices"][0]["text"] == "1 2 3"


def test_requests_go_round(machines: Machines) -> None:
    prefill, one, two = machines.prefill(), machines.native(), machines.native()
    for server in (prefill, one, two):
        server.ready()
    router = machines.vllm_router([prefill], [one, two]).ready()
    for _ in range(4):
        router.say("x")
    for native in (one, two):
        assert 'request_success_total{engine="0",model_name="glm5"} 2.0' in native.get("/metrics").text


def test_it_shows_its_workers_and_the_models_behind_it(machines: Machines, pools: tuple[Server, Server]) -> None:
    router = machines.vllm_router([pools[0]], [pools[1]]).ready()
    shown = router.get("/workers").json()
    assert shown["stats"] == {"prefill_count": 1, "decode_count": 1, "regular_count": 0}
    assert all(worker["is_healthy"] for worker in shown["workers"])
    assert router.get("/v1/models").json()["data"][0]["id"] == "glm5"
    assert router.get("/health").text == "All servers healthy"
    assert router.get("/nope").status_code == 405


def test_what_vllm_refuses_is_passed_on(machines: Machines, pools: tuple[Server, Server]) -> None:
    router = machines.vllm_router([pools[0]], [pools[1]]).ready()
    reply = router.post("/v1/chat/completions", chat_body("x") | {"model": "other"})
    assert reply.status_code == reply.json()["error"]["code"] == 404
    assert httpx.post(f"{router.url}/v1/chat/completions", content=b"{}").status_code == 415


def test_a_dead_decode_worker_fails_requests_until_it_is_found_out(
    machines: Machines, pools: tuple[Server, Server]
) -> None:
    router = machines.vllm_router([pools[0]], [pools[1]], "--health-check-interval-secs", "10").ready()
    pools[1].stop()
    failed = router.chat("x")
    assert failed.status_code in (500, 503)
    until(lambda: router.get("/health").status_code == 503, "three health checks have failed")
    assert router.get("/readiness").json()["reason"] == "no healthy decode workers"
    refused = router.chat("x")
    assert (refused.status_code, refused.text) == (503, "No available workers: 1 prefill, 0 decode")


def test_a_client_that_hangs_up_ends_the_request_at_the_worker(machines: Machines) -> None:
    prefill = machines.prefill().ready()
    native = machines.native(node={"pace": {"native_tps": 20}}).ready()
    router = machines.vllm_router([prefill], [native]).ready()
    events = router.events("count to 5000")
    next(events)
    assert native.get("/load").json()["server_load"] == 1
    events.close()
    until(lambda: native.get("/load").json()["server_load"] == 0, "the worker is free")


def test_without_disaggregation_it_spreads_over_plain_workers(machines: Machines) -> None:
    server = machines.vllm().ready()
    address, root = machines.node()
    router = machines.start("vllm_router", address, root, 30000, "--host", address, "--worker-urls", server.url)
    assert router.ready().say("plain") == "You said: plain"
