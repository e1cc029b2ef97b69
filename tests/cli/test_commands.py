"""What each command asks, prints and ends with, around an engine whose answers are written down."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import gpufleet.engine
from gpufleet.cli.commands.ask import stats_line
from gpufleet.cli.main import main
from gpufleet.domain.nodes import NodeName
from gpufleet.domain.progress import Progress, ProgressState
from gpufleet.errors import EndpointFailed, Interrupted, InvalidFleet, NodeFailed, StillBilling
from gpufleet.planning.model import ActionKind, FieldChange
from tests.cli.scripted import DECODE, Answered, Engine, nothing_rented, plan_of

FAILED = ProgressState.FAILED
QUICKSTART = Path(__file__).parents[2] / "examples/quickstart.yaml"


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Engine:
    made = Engine()
    monkeypatch.setitem(sys.modules, "gpufleet.engine.api", made)
    monkeypatch.setattr(gpufleet.engine, "api", made, raising=False)
    monkeypatch.setenv("GPUFLEET_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("GPUFLEET_FILE", str(QUICKSTART))
    return made


@pytest.fixture
def run(engine: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    class NoTerminal:
        def isatty(self) -> bool:
            return False

        def read(self) -> str:
            return "from stdin"

    monkeypatch.setattr(sys, "stdin", NoTerminal())

    def go(*words: str) -> Ran:
        code = main(words)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return go


Run = Callable[..., Ran]


def test_plan_prints_the_plan_and_the_drift(engine: Engine, run: Run) -> None:
    engine.drifted = (FieldChange("versions.vllm", "0.25.0", "0.26.0"),)
    ran = run("plan")
    assert (ran.code, engine.calls) == (0, ["make_plan", "drift"])
    assert "decode/0" in ran.out
    assert "drift: versions.vllm: 0.25.0 -> 0.26.0" in ran.out


def test_plan_as_json_is_one_document(engine: Engine, run: Run) -> None:
    ran = run("plan", "-o", "json")
    assert list(ran.json) == [
        "fleet",
        "changes",
        "usd_per_hour_now",
        "usd_per_hour_after",
        "seconds_to_ready",
        "actions",
        "drift",
        "problems",
    ]
    action = ran.json["actions"][0]
    assert (action["kind"], action["node"], action["usd_per_hour"]) == ("create", "decode/0", "41.50")
    assert action["offer"]["gpu"] == "B200:8"
    assert ran.err == ""


def test_a_plan_that_lacks_offers_ends_as_refused_by_the_provider(engine: Engine, run: Run) -> None:
    engine.plan = plan_of(problems=("no offer for decode/1",))
    ran = run("plan")
    assert ran.code == 4
    assert "error: no offer for decode/1" in ran.err


def test_a_plan_above_the_budget_ends_as_an_invalid_fleet(
    engine: Engine, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.plan = plan_of(problems=("over budget",))
    monkeypatch.setattr("gpufleet.spec.model.Fleet.nodes", lambda self: [NodeName("decode", 0)])
    ran = run("plan")
    assert ran.code == 3
    assert "error: over budget" in ran.err


def test_up_refuses_to_spend_when_it_cannot_ask(engine: Engine, run: Run) -> None:
    ran = run("up")
    assert (ran.code, engine.calls) == (7, ["check", "make_plan"])
    assert "$41.50/h" in ran.err
    assert f"next: gpufleet up {QUICKSTART} --yes" in ran.err
    assert ran.out == ""


def test_up_with_yes_shows_the_plan_and_progress_on_stderr_and_the_status_on_stdout(engine: Engine, run: Run) -> None:
    ran = run("up", "--yes")
    assert (ran.code, engine.calls) == (0, ["check", "make_plan", "up"])
    assert "create" in ran.err
    assert "decode/0 boot" in ran.err
    assert "1 node ready in" in ran.err
    assert ran.out.startswith("quickstart: 1 node, 1 ready")


def test_up_as_json_keeps_stdout_for_the_document(engine: Engine, run: Run) -> None:
    ran = run("up", "--yes", "--output", "json")
    assert ran.json["fleet"] == "quickstart"
    assert ran.json["usd_per_hour"] == "41.50"


def test_up_without_changes_says_so_asks_nothing_and_still_checks_the_service(engine: Engine, run: Run) -> None:
    engine.plan = plan_of(ActionKind.KEEP)
    ran = run("up")
    assert (ran.code, engine.calls) == (0, ["check", "make_plan", "up"])
    assert ran.err == f"nothing to change: quickstart is as {QUICKSTART} says\n"
    assert ran.out.startswith("quickstart: 1 node, 1 ready")


def test_up_without_changes_still_tells_what_it_had_to_do_after_all(engine: Engine, run: Run) -> None:
    engine.plan = plan_of(ActionKind.KEEP)
    engine.progress = (Progress(DECODE, "serve"), Progress(None, "router"), Progress(DECODE, "serve", FAILED))
    told = run("up").err
    assert "decode/0 serve\n" in told
    assert "decode/0 serve failed" in told
    assert "router" not in told


def test_up_looks_at_this_machine_before_it_shows_a_plan(engine: Engine, run: Run) -> None:
    engine.fails["check"] = InvalidFleet("haproxy is not installed", hint="sudo apt-get install haproxy")
    ran = run("up", "--yes")
    assert (ran.code, engine.calls) == (3, ["check"])


def test_up_does_not_start_a_plan_with_problems(engine: Engine, run: Run) -> None:
    engine.plan = plan_of(problems=("no offer",))
    assert run("up", "--yes").code == 4
    assert engine.calls == ["check", "make_plan"]


@pytest.mark.parametrize("stop", [Interrupted("interrupted", where="decode/0"), KeyboardInterrupt()])
def test_a_stopped_up_tells_what_exists_its_price_and_the_next_two_commands(
    engine: Engine, run: Run, stop: BaseException
) -> None:
    engine.fails["up"] = stop
    ran = run("up", "--yes")
    assert ran.code == 130
    assert engine.calls[-1] == "status recorded"
    assert "error: interrupted; 1 rental running for $41.50/h" in ran.err
    assert f"gpufleet up {QUICKSTART}" in ran.err
    assert f"gpufleet down {QUICKSTART}" in ran.err


def test_down_refuses_to_remove_when_it_cannot_ask(engine: Engine, run: Run) -> None:
    ran = run("down")
    assert ran.code == 7
    assert "down" not in engine.calls
    assert "1 node of quickstart at $41.50/h" in ran.err


def test_down_with_yes_prints_the_bill(engine: Engine, run: Run) -> None:
    ran = run("down", "--yes")
    assert ran.code == 0
    assert "$83.00" in ran.out
    assert run("down", "--yes", "-o", "json").json["bill"]["total_usd"] == "83.00"


def test_down_of_nothing_needs_no_yes_and_still_has_the_provider_confirm(engine: Engine, run: Run) -> None:
    engine.fleet_status = nothing_rented()
    ran = run("down")
    assert (ran.code, engine.calls) == (0, ["status recorded", "down"])


def test_down_that_could_not_confirm_ends_with_its_own_code(engine: Engine, run: Run) -> None:
    engine.fails["down"] = StillBilling("decode/0 could not be confirmed gone", hint="gpufleet down")
    assert run("down", "--yes").code == 6


def test_status_asks_the_providers_unless_told_not_to(engine: Engine, run: Run) -> None:
    assert run("status").code == 0
    assert run("status", "--offline", "-o", "json").json["nodes"][0]["node"] == "decode/0"
    assert engine.calls == ["status live", "status recorded"]


def test_ask_streams_to_stdout_and_tells_the_path_on_stderr(engine: Engine, run: Run) -> None:
    ran = run("ask", "say hello", "--channel", "chat", "--max-tokens", "9")
    assert ran.out == "Hello world\n"
    assert "cell-decode-0" in ran.err
    assert "first token after 0.41 s" in ran.err
    assert engine.arguments == {"text": "say hello", "channel": "chat", "max_tokens": 9}


def test_ask_as_json_has_the_text_and_the_path(engine: Engine, run: Run) -> None:
    document = run("ask", str(QUICKSTART), "hi", "-o", "json").json
    assert (document["text"], document["served_by"], document["tokens"]) == ("Hello world", "cell-decode-0", 87)
    assert document["channel"] == "chat"
    assert run("ask", "hi", "--channel", "batch", "-o", "json").json["channel"] == "batch"


def test_ask_joins_words_reads_stdin_and_refuses_nothing(engine: Engine, run: Run) -> None:
    run("ask", "two", "words")
    assert engine.arguments["text"] == "two words"
    run("ask", "-")
    assert engine.arguments["text"] == "from stdin"
    assert run("ask").code == 2
    assert run("ask", " ").code == 2


def test_a_broken_answer_keeps_what_came_and_ends_with_its_own_code(engine: Engine, run: Run) -> None:
    engine.fails["ask"] = EndpointFailed("the stream ended early", where="cell-decode-0")
    ran = run("ask", "hi")
    assert ran.code == 8
    assert ran.out.startswith("Hello world")


def test_the_line_below_an_answer_says_when_it_was_cut() -> None:
    assert stats_line(Answered()).startswith(  # type: ignore[arg-type]
        "cell-decode-0 · first token after 0.41 s · 87 tokens at 181.3/s · waited 12 ms"
    )
    assert "waited" not in stats_line(Answered(queue_ms=0))  # type: ignore[arg-type]
    assert "cut by --max-tokens" in stats_line(Answered(finish_reason="length"))  # type: ignore[arg-type]


def test_logs_are_copied_as_they_come(engine: Engine, run: Run) -> None:
    assert run("logs", "decode/0", "-n", "5", "-s", "serve").out == "one\ntwo\n"
    assert engine.arguments == {"node": NodeName("decode", 0), "source": "serve", "follow": False, "tail": 5}


def test_logs_as_json_are_one_document_per_line(engine: Engine, run: Run) -> None:
    documents = [json.loads(line) for line in run("logs", "-f", "decode/0", "-o", "json").out.splitlines()]
    assert documents == [{"node": "decode/0", "line": "one"}, {"node": "decode/0", "line": "two"}]
    assert engine.arguments["follow"] is True


def test_exec_precedes_lines_by_their_node_and_fails_when_one_node_did(engine: Engine, run: Run) -> None:
    ran = run("exec", "decode", "--", "nvidia-smi", "-L")
    assert ran.code == 5
    assert ran.out == "decode/0 | out\n"
    assert "decode/1 | err" in ran.err
    assert "error: the command failed on decode/1 (exit 3)" in ran.err
    assert engine.arguments["command"] == "nvidia-smi -L"


def test_exec_as_json_is_one_document_per_node(engine: Engine, run: Run) -> None:
    ran = run("exec", "prefill", "-o", "json", "--", "true")
    documents = [json.loads(line) for line in ran.out.splitlines()]
    assert documents[0] == {"node": "prefill/0", "exit_code": 0, "stdout": "out\n", "stderr": ""}
    assert len(documents) == 2


def test_ssh_as_json_tells_the_command(engine: Engine, run: Run) -> None:
    assert run("ssh", "decode/0", "-o", "json").json == {"argv": ["ssh", "-p", "2222", "root@127.64.0.2"]}


def test_ssh_hands_the_process_over(engine: Engine, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[list[str]] = []
    monkeypatch.setattr("os.execvp", lambda program, argv: handed.append([program, *argv[1:]]))
    run("ssh", "decode/0")
    assert handed == [["ssh", "-p", "2222", "root@127.64.0.2"]]


def test_ssh_that_is_not_installed_names_the_package(engine: Engine, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    ran = run("ssh", "decode/0")
    assert ran.code == 5
    assert "openssh-client" in ran.err


def test_render_prints_what_would_run(engine: Engine, run: Run) -> None:
    assert run("render", "launch", "decode/0").out == "launch for decode/0\n"
    assert run("render", "haproxy").out == "haproxy for None\n"
    assert run("render", "launch", "decode/0", "-o", "json").json == {
        "what": "launch",
        "node": "decode/0",
        "text": "launch for decode/0",
    }


@pytest.mark.parametrize(
    "words",
    [
        ("ssh", "decode/9"),
        ("ssh",),
        ("logs",),
        ("logs", "decode/0", "decode/1"),
        ("exec", "decode/0"),
        ("exec", "nobody", "--", "true"),
        ("render",),
        ("render", "launch", "decode"),
    ],
)
def test_a_node_or_word_that_is_not_there_is_a_usage_error(engine: Engine, run: Run, words: tuple[str, ...]) -> None:
    ran = run(*words)
    assert ran.code == 2
    assert "next:" in ran.err
    assert engine.calls == []


def test_a_failure_of_a_node_says_where(engine: Engine, run: Run) -> None:
    engine.fails["up"] = NodeFailed("7 of 8 GPUs", where="decode/0 check", hint="gpufleet logs decode/0")
    ran = run("up", "--yes")
    assert ran.code == 5
    assert ran.err.endswith("error: 7 of 8 GPUs\n  at: decode/0 check\n  next: gpufleet logs decode/0\n")
