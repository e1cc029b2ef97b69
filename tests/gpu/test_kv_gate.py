"""What can be known of the run on a GPU without one: its verdict, its requests, and that its scripts can start."""

from __future__ import annotations

import json
import os
import py_compile
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.gpu import model
from tests.gpu.verdict import Handover, verdict

HERE = Path(__file__).parent
HOST = f"127.79.{os.getpid() // 250 % 250}.{os.getpid() % 250 + 1}"
"""Of each test worker its own."""
OWN, OTHER = Handover(1.0, 0.02), Handover(0.03, 1.0)


def test_enough_hand_overs_of_own_bytes_are_clean() -> None:
    found = verdict([OWN] * 199 + [Handover(0.9993, 0.02)], failed=3)
    assert found.is_clean
    assert not found.is_corrupt
    assert (found.handed_over, found.own_min, found.failed) == (200, 0.9993, 3)


@pytest.mark.parametrize("spoilt", [OTHER, Handover(0.998, 0.02)])
def test_a_single_one_with_other_bytes_is_not(spoilt: Handover) -> None:
    assert not verdict([OWN] * 300 + [spoilt], failed=0).is_clean


def test_too_few_prove_nothing() -> None:
    assert not verdict([OWN] * 199, failed=0).is_clean
    assert verdict([], failed=4).document()["own_min"] is None


def test_the_share_of_others_is_that_of_the_likest() -> None:
    assert Handover.of("A", {"A": 0.4, "B": 0.1, "C": 0.6}) == Handover(0.4, 0.6)


@dataclass
class Machine:
    """Answers as vLLM, the gate and four decode nodes do; past the gate requests get each other's KV."""

    asked: list[dict[str, Any]] = field(default_factory=list)
    mixes_behind_gate: bool = False

    def answer(self, path: str, body: dict[str, Any], port: int) -> dict[str, Any]:
        if path == "/v1/completions":
            self.asked.append({**body, "port": port})
            return {"id": f"cmpl-{'mixed' if port == 8000 or self.mixes_behind_gate else 'own'}{len(self.asked)}"}
        if path == "/probe/compare":
            own = "ABCD"[(port - 5557) // 100]
            good, bad = (0.02, 1.0) if body["rid"].startswith("mixed") else (1.0, 0.02)
            return {name: good if name == own else bad for name in "ABCD"}
        return {}


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            text = json.dumps(made.answer(self.path, body, self.server.server_port)).encode()  # type: ignore[attr-defined]
            self.send_response(200)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    with ExitStack() as stack:
        for port in (8000, 8100, *(5557 + 100 * i for i in range(4))):
            server = stack.enter_context(ThreadingHTTPServer((HOST, port), Handler))
            Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            stack.callback(server.shutdown)
        yield made


def run(tmp_path: Path, *argv: str) -> tuple[int, dict[str, Any]]:
    out = tmp_path / "kv.json"
    where = ("--vllm", f"http://{HOST}:8000", "--gate", f"http://{HOST}:8100", "--decode-host", HOST)
    command = [sys.executable, str(HERE / "kv_gate.py"), *where, "--out", str(out), *argv]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert out.exists(), done.stderr
    return done.returncode, json.loads(out.read_text())


def test_a_gate_that_keeps_all_apart_passes(machine: Machine, tmp_path: Path) -> None:
    status, told = run(tmp_path)
    assert status == 0
    assert (told["gate"]["handed_over"], told["gate"]["not_own"]) == (240, 0)
    assert (told["without"]["handed_over"], told["without"]["mostly_foreign"]) == (60, 60)
    targets = {asked["kv_transfer_params"]["tilert_ctrl_port"] for asked in machine.asked}
    assert targets == {5556, 5656, 5756, 5856}
    assert len({asked["prompt"] for asked in machine.asked}) == 4


def test_a_gate_that_mixes_fails(machine: Machine, tmp_path: Path) -> None:
    machine.mixes_behind_gate = True
    status, told = run(tmp_path, "--rounds", "50", "--rounds-without", "1")
    assert status == 1
    assert told["gate"]["mostly_foreign"] == 200


def test_a_run_with_too_few_rounds_fails(machine: Machine, tmp_path: Path) -> None:
    assert run(tmp_path, "--rounds", "2", "--rounds-without", "1")[0] == 1


@pytest.mark.parametrize("script", ["up.sh", "down.sh"])
def test_a_script_is_one_that_shellcheck_accepts(script: str) -> None:
    shellcheck = str(Path(sys.executable).with_name("shellcheck"))
    done = subprocess.run([shellcheck, "-s", "sh", HERE / script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["decode_probe.py", "kv_gate.py", "model.py"])
def test_a_program_compiles(name: str, tmp_path: Path) -> None:
    py_compile.compile(str(HERE / name), cfile=str(tmp_path / "x.pyc"), doraise=True)


def test_the_model_has_the_layers_and_the_geometry_that_the_connector_looks_for() -> None:
    assert (model.CONFIG["num_hidden_layers"], model.CONFIG["num_nextn_predict_layers"]) == (78, 1)
    assert (model.CONFIG["kv_lora_rank"], model.CONFIG["qk_rope_head_dim"], model.CONFIG["index_head_dim"]) == (
        512,
        64,
        128,
    )
