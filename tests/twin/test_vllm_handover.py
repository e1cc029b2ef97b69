"""KV on its way: to TileRT's decode nodes, and over NIXL to native ones."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpufleet.twin import answers, wire
from tests.twin.serving import MTP, Machines, Server, both_connectors, machines_in, until


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with machines_in(tmp_path) as started:
        yield started


def prefilled(prefill: Server, decode: Server, text: str) -> str:
    """Prefill towards a decode node, as a pd_router asks; returns the id of the hand-over."""
    params = {"tilert_host": decode.host, "tilert_ctrl_port": 5556}
    reply = prefill.chat(text, max_tokens=1, kv_transfer_params=params).raise_for_status()
    return wire.derive_rid(reply.json()["id"])


def decoded(decode: Server, rid: str, **extra: Any) -> str:
    """Decode a hand-over; returns the answer."""
    first = answers.encode("You")[0]
    body = {"rid": rid, "first_token_id": first, "max_tokens": 500} | extra
    return answers.decode(decode.post("/pd/decode", body).raise_for_status().json()["token_ids"])


def test_a_decode_node_answers_what_the_prefill_node_was_asked(machines: Machines) -> None:
    prefill, decode = machines.prefill().ready(), machines.decode().ready()
    rid = prefilled(prefill, decode, "hand this over")
    assert decoded(decode, rid) == "You said: hand this over"


def test_one_at_a_time_hand_overs_never_mix(machines: Machines) -> None:
    prefill, one, two = machines.prefill(), machines.decode(), machines.decode()
    for server in (prefill, one, two):
        server.ready()
    for number in range(10):
        decode = (one, two)[number % 2]
        text = f"question {number} " * 5
        assert decoded(decode, prefilled(prefill, decode, text)) == f"You said: {text.strip()}"


def test_hand_overs_that_overlap_reach_each_others_decode_node(machines: Machines) -> None:
    """The reason why a cell has one decode node: TileRT's connector has one staging buffer for all requests."""
    prefill, one, two = machines.prefill(node={"pace": {"prefill_tps": 2000}}), machines.decode(), machines.decode()
    for server in (prefill, one, two):
        server.ready()

    def ask(decode: Server, letter: str) -> bool:
        text = " ".join([letter * 4] * 40)
        return decoded(decode, prefilled(prefill, decode, text)) == f"You said: {text}"

    with ThreadPoolExecutor(3) as pool:
        before = pool.submit(prefill.chat, "word " * 2000, max_tokens=1)
        until(lambda: "num_requests_running" in running_line(prefill, 1.0), "a long prompt holds the engine")
        both = [pool.submit(ask, decode, letter) for decode, letter in ((one, "a"), (two, "b"))]
        before.result()
        whole = [future.result() for future in both]
    assert not all(whole)


def running_line(server: Server, value: float) -> str:
    """The metric of running requests, if it has that value."""
    lines = server.get("/metrics").text.splitlines()
    return next((line for line in lines if "num_requests_running{" in line and line.endswith(f" {value}")), "")


@pytest.mark.parametrize(
    ("prefill_env", "decode_argv", "reason"),
    [
        ({"TILERT_PD_SENDERS": "4"}, (), "sender-count mismatch"),
        ({"TILERT_PD_NO_MTP": "1"}, (), "layout version mismatch: 10 vs 1010"),
        ({}, ("--kv-cache-dtype", "bf16"), "layout version mismatch: 50 vs 10"),
        ({}, ("--max-seq-len", "8"), "exceeds decode max_seq_len 8"),
        ({"TWIN_PACKAGES": "vllm==0.26.0,nixl==1.3.1,tilert==0.1.5"}, (), "protocol mismatch"),
    ],
)
def test_disagreement_shows_in_the_prefill_log_and_as_a_decode_that_waits(
    machines: Machines, prefill_env: dict[str, str], decode_argv: tuple[str, ...], reason: str
) -> None:
    prefill, decode = machines.prefill(**prefill_env).ready(), machines.decode(*decode_argv).ready()
    rid = prefilled(prefill, decode, "hello over there, far away")
    until(lambda: reason in prefill.log, reason)
    reply = decode.post("/pd/decode", {"rid": rid, "first_token_id": 1, "timeout_s": 0.2})
    assert (reply.status_code, reply.json()["error"]) == (504, "kv_transfer_timeout")


def test_fewer_ranks_than_senders_are_never_noticed(machines: Machines) -> None:
    prefill = machines.vllm("-tp", "4", *MTP, "--kv-transfer-config", both_connectors(), node={"vram_gb": 288}).ready()
    decode = machines.decode().ready()
    rid = prefilled(prefill, decode, "hello")
    until(lambda: prefill.log.count(f"sent {rid}") == 4, "four ranks have sent")
    reply = decode.post("/pd/decode", {"rid": rid, "first_token_id": 1, "timeout_s": 0.2})
    assert reply.status_code == 504


def test_one_sender_fills_every_shard(machines: Machines) -> None:
    env = {"TILERT_PD_SENDERS": "1", "TILERT_PD_SHARDS": "1"}
    prefill, decode = machines.prefill(**env).ready(), machines.decode(**env).ready()
    assert decoded(decode, prefilled(prefill, decode, "all in one")) == "You said: all in one"


def remote_prefill(prefill: Server, text: str) -> dict[str, Any]:
    """The first leg of a native request; returns the parameters for the second."""
    reply = prefill.chat(text, max_tokens=1, kv_transfer_params={"do_remote_decode": True}).raise_for_status()
    return dict(reply.json()["kv_transfer_params"])


def test_native_decode_fetches_its_kv_from_the_prefill_node(machines: Machines) -> None:
    prefill, native = machines.prefill().ready(), machines.native().ready()
    params = remote_prefill(prefill, "over NIXL")
    assert params["remote_host"] == prefill.host
    assert native.say("over NIXL", kv_transfer_params=params) == "You said: over NIXL"
    assert 'nixl_xfer_time_seconds_count{engine="0",model_name="glm5"} 1.0' in native.get("/metrics").text


def test_kv_is_fetched_once(machines: Machines) -> None:
    prefill, native = machines.prefill().ready(), machines.native().ready()
    params = remote_prefill(prefill, "once")
    assert native.chat("once", kv_transfer_params=params).status_code == 200
    assert native.chat("once", kv_transfer_params=params).status_code == 500


def test_the_default_side_channel_host_sends_a_peer_to_itself(machines: Machines) -> None:
    prefill = machines.prefill(VLLM_NIXL_SIDE_CHANNEL_HOST="localhost").ready()
    native = machines.native().ready()
    params = remote_prefill(prefill, "lost")
    assert params["remote_host"] == "localhost"
    assert native.chat("lost", kv_transfer_params=params).status_code == 500
    assert "Remote NIXL agent engine ID mismatch" in native.log


def test_a_peer_with_other_settings_is_incompatible(machines: Machines) -> None:
    prefill, native = machines.prefill().ready(), machines.native(TWIN_PACKAGES="vllm==0.25.0,nixl==1.3.1").ready()
    assert native.chat("x", kv_transfer_params=remote_prefill(prefill, "x")).status_code == 500
    assert "NIXL compatibility hash mismatch" in native.log


def test_with_recompute_a_lost_kv_costs_time_and_no_error(machines: Machines) -> None:
    prefill, native = machines.prefill().ready(), machines.native("recompute").ready()
    params = remote_prefill(prefill, "again")
    prefill.stop()
    assert native.say("again", kv_transfer_params=params) == "You said: again"
