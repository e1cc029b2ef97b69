"""TileRT's decode server: one request at a time, and what it says on its control port."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpufleet.twin import answers, decode_server, wire
from tests.twin.serving import Machines, Server, machines_in, until
from tests.twin.test_vllm_handover import decoded, prefilled

PACKAGES = ("tilert==0.1.6.post3", "torch==2.11.0", "fastapi==1", "uvicorn==1", "pydantic==2", "requests==2")


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with machines_in(tmp_path) as started:
        yield started


@pytest.fixture
def decode(machines: Machines) -> Server:
    return machines.decode().ready()


class Rank:
    """One prefill rank at the control port."""

    def __init__(self, server: Server, rid: str, rank: int, **fields: Any) -> None:
        self.sock = socket.create_connection((server.host, 5556), timeout=10)
        self.hello = wire.recv_msg(self.sock)
        wire.send_msg(self.sock, {"rid": rid, "rank": rank, "seq_len": 4} | fields)
        self.reply = wire.recv_msg(self.sock)

    def done(self) -> None:
        """Say that this rank's part has been written."""
        wire.send_msg(self.sock, {"done": True, "generation": self.reply["generation"]})
        self.sock.close()


def deliver(server: Server, rid: str) -> None:
    """Hand over an empty KV from all ranks."""
    for rank in range(8):
        Rank(server, rid, rank).done()


def body(rid: str, **extra: Any) -> dict[str, Any]:
    return {"rid": rid, "first_token_id": answers.encode("You")[0]} | extra


def test_the_defaults_are_those_of_the_real_program() -> None:
    args = decode_server.build_parser().parse_args([])
    assert (args.engine, args.max_seq_len, args.transport) == ("stub", 4096, "mooncake")
    assert (args.ctrl_port, args.http_port, args.kv_cache_dtype) == (5556, 5557, "fp8_ds_mla")


CASES: dict[str, tuple[tuple[str, ...], dict[str, str], dict[str, Any], int, str]] = {
    "an unknown flag": (("--host", "0.0.0.0"), {}, {}, 2, "unrecognized arguments: --host"),
    "another MTP depth": (("--num-mtp", "2"), {}, {}, 2, "invalid choice: 2"),
    "an unknown model": (("--model", "glm9"), {}, {}, 1, "unknown model profile 'glm9'"),
    "an unknown cache type": (("--kv-cache-dtype", "fp4"), {}, {}, 1, "unknown kv_cache_dtype 'fp4'"),
    "Hopper": ((), {}, {"gpu_model": "H200"}, 1, "no kernel image is available for execution on the device"),
    "half a machine": ((), {}, {"gpu_count": 4}, 1, "invalid device ordinal"),
    "a missing GPU": ((), {}, {"faults": ["bad-gpu"]}, 1, "invalid device ordinal"),
    "an old driver": ((), {}, {"faults": ["old-driver"]}, 1, "driver on your system is too old"),
    "no GPU in the container": ((), {"TWIN_GPUS": "0"}, {}, 1, "Found no NVIDIA driver"),
    "tilert not installed": ((), {"TWIN_PACKAGES": "torch==2.11.0"}, {}, 1, "No module named 'tilert'"),
    "an old transformers": (
        (),
        {"TWIN_PACKAGES": ",".join((*PACKAGES, "nixl==1.3.1", "transformers==4.46.3"))},
        {},
        1,
        "TokenizersBackend does not exist",
    ),
    "nixl not installed": (
        (),
        {"TWIN_PACKAGES": ",".join((*PACKAGES, "transformers==5.4.0"))},
        {},
        1,
        "No module named 'nixl'",
    ),
    "weights that are not mounted": ((), {"TWIN_MOUNTS": "/elsewhere"}, {}, 1, "Index file"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_decode_server_refuses(machines: Machines, case: str) -> None:
    argv, env, node, code, message = CASES[case]
    flags = ("--engine", "tilert", "--transport", "nixl", "--model-weights-dir", machines.weights())
    blackwell = {"gpu_model": "B200", "vram_gb": 180}
    ended = machines.run("decode_server", *flags, *argv, env=env, node=blackwell | node)
    assert ended.returncode == code, ended.stderr
    assert message in ended.stderr


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("model.safetensors.index.json", "Index file"),
        ("one.safetensors", "one.safetensors"),
        ("chat_template.jinja", "chat_template.jinja"),
        ("tokenizer.json", "Can't load tokenizer"),
    ],
)
def test_weights_without_all_their_files_do_not_load(machines: Machines, missing: str, message: str) -> None:
    weights = machines.weights()
    (Path(weights) / missing).unlink()
    flags = ("--engine", "tilert", "--transport", "nixl", "--model-weights-dir", weights)
    ended = machines.run("decode_server", *flags, node={"gpu_model": "B200"})
    assert ended.returncode == 1
    assert message in ended.stderr


def test_ports_open_only_after_the_weights_are_loaded(machines: Machines) -> None:
    slow = machines.decode(node={"pace": {"load_seconds": 400}})
    until(lambda: "loading TileRT engine" in slow.log, "loading")
    with pytest.raises(OSError):
        socket.create_connection((slow.host, 5556), timeout=1)
    slow.ready()
    for line in ("TileRT engine ready", "control plane listening on :5556", "decode server on :5557"):
        assert line in slow.log


def test_the_stub_engine_is_healthy_and_wrong(machines: Machines) -> None:
    stub = machines.decode("--engine", "stub", node={"gpu_model": "H200"}).ready()
    assert stub.get("/capabilities").json()["engine"] == "StubEngine"
    deliver(stub, "r1")
    assert stub.post("/pd/decode", {"rid": "r1", "first_token_id": 5}).json()["token_ids"] == [5, 11, 22, 33]


def test_the_hello_says_what_must_agree(decode: Server) -> None:
    with socket.create_connection((decode.host, 5556), timeout=10) as sock:
        hello = wire.recv_msg(sock)
    expected = {"magic": "tilert-pd", "protocol_version": 2, "layout_version": 10, "transport": "nixl"}
    assert expected.items() <= hello.items()
    assert (hello["max_seq_len"], hello["senders"], hello["busy"]) == (202752, 8, False)


def test_a_hello_probe_takes_no_slot(decode: Server) -> None:
    for _ in range(3):
        socket.create_connection((decode.host, 5556), timeout=10).close()
    assert Rank(decode, "r1", 0).reply["accepted"]


def test_what_it_can_do(decode: Server) -> None:
    assert decode.get("/capabilities").json()["capabilities"] == {
        "penalties": False,
        "ignore_eos": True,
        "logprobs": False,
    }


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/"])
def test_it_has_no_openai_paths(decode: Server, path: str) -> None:
    assert decode.get(path).status_code == 404


def test_prompts_longer_than_its_cache_are_refused_at_the_control_port(decode: Server) -> None:
    reply = Rank(decode, "r1", 0, seq_len=300_000).reply
    assert (reply["accepted"], reply["error"]) == (False, "seq_len exceeds max_seq_len")


def test_a_second_request_is_refused_while_one_is_being_written(decode: Server) -> None:
    Rank(decode, "r1", 0)
    other = Rank(decode, "r2", 0)
    assert other.hello["busy"]
    assert (other.reply["accepted"], other.reply["error"], other.reply["busy_rid"]) == (False, "busy", "r1")


def test_a_rank_is_not_heard_twice(decode: Server) -> None:
    Rank(decode, "r1", 0).done()
    until(lambda: "rank 0 done (1/8)" in decode.log, "the first rank is done")
    assert Rank(decode, "r1", 0).reply["error"] == "duplicate_rank"


def test_a_request_nobody_waits_for_any_more_is_refused_for_a_while(decode: Server) -> None:
    assert decode.post("/pd/decode", body("r1", timeout_s=0.1)).status_code == 504
    assert Rank(decode, "r1", 0).reply["detail"] == "no_consumer"


def test_only_one_request_at_a_time(machines: Machines) -> None:
    prefill, decode = machines.prefill().ready(), machines.decode(node={"pace": {"decode_tps": 20}}).ready()
    rid = prefilled(prefill, decode, "count to 5000")
    with httpx.stream("POST", f"{decode.url}/pd/decode", json=body(rid, stream=True), timeout=30) as response:
        lines = response.iter_lines()
        assert json.loads(next(lines)) == {"t": answers.encode("You")}
        assert decode.get("/decode_status").json() == {"status": "busy", "current_rid": rid}
        refused = decode.post("/pd/decode", body("other"))
        assert (refused.status_code, refused.json()["error"]) == (429, "busy")
    until(lambda: decode.get("/decode_status").json()["status"] == "idle", "idle after the client hung up")


def test_tokens_come_in_batches_of_the_poll_interval(machines: Machines) -> None:
    prefill = machines.prefill().ready()
    decode = machines.decode(node={"pace": {"decode_tps": 500}}, TILERT_DECODE_POLL_MS="200").ready()
    rid = prefilled(prefill, decode, "count to 200")
    with httpx.stream("POST", f"{decode.url}/pd/decode", json=body(rid, stream=True), timeout=30) as response:
        lines = [json.loads(line) for line in response.iter_lines()]
    assert len(lines[0]["t"]) == 1
    assert max(len(line["t"]) for line in lines[1:-1]) > 20
    assert lines[-1]["done"]
    assert lines[-1]["n"] == 200


def test_a_cancelled_request_ends_early(machines: Machines) -> None:
    prefill, decode = machines.prefill().ready(), machines.decode(node={"pace": {"decode_tps": 50}}).ready()
    rid = prefilled(prefill, decode, "count to 5000")
    request = body(rid, stream=True, max_tokens=5000)
    with httpx.stream("POST", f"{decode.url}/pd/decode", json=request, timeout=30) as response:
        lines = response.iter_lines()
        next(lines)
        assert decode.post("/pd/cancel", {"rid": "other"}).status_code == 404
        assert decode.post("/pd/cancel", {"rid": rid}).json() == {"cancelled": rid}
        last = json.loads(list(lines)[-1])
    assert last["finish_reason"] == "cancelled"
    assert last["n"] < 5000


def test_max_tokens_defaults_to_256(machines: Machines) -> None:
    prefill, decode = machines.prefill().ready(), machines.decode().ready()
    rid = prefilled(prefill, decode, "count to 400")
    assert len(decode.post("/pd/decode", body(rid)).json()["token_ids"]) == 256


def test_what_the_engine_cannot_do_is_refused_after_the_kv_came(decode: Server) -> None:
    deliver(decode, "r1")
    reply = decode.post("/pd/decode", body("r1", grammar_spec={"type": "json_object"}))
    assert (reply.status_code, reply.json()["error_type"]) == (501, "grammar_unsupported")
    deliver(decode, "r2")
    reply = decode.post("/pd/decode", body("r2", sampling={"presence_penalty": 1.0}))
    assert (reply.status_code, reply.json()["error_type"]) == (501, "capability_unavailable")


def test_each_request_leaves_a_line_with_its_times(machines: Machines) -> None:
    prefill, decode = machines.prefill().ready(), machines.decode().ready()
    rid = prefilled(prefill, decode, "hello")
    decoded(decode, rid)
    line = next(line for line in decode.log.splitlines() if "REQSTAT" in line)
    for part in (f"rid={rid}", "completion=3", "wire_wait=", "decode=", "mtp_accept_mean="):
        assert part in line


def test_a_body_without_an_id_is_unprocessable(decode: Server) -> None:
    assert decode.post("/pd/decode", {"first_token_id": 1}).status_code == 422
