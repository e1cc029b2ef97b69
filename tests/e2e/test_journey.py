"""The main job, as a user does it: plan, up, ask, status, up again, down, bill."""

from __future__ import annotations

import json
import subprocess
from decimal import Decimal

import pytest
import yaml

from gpufleet.domain.nodes import NodeName
from gpufleet.engine.api import ssh_command
from gpufleet.engine.session import open_session
from gpufleet.providers.mock import billing
from tests.e2e.world import BATCH_KEY, CHAT_KEY, VIP_KEY, World


@pytest.mark.report("skypilot 4282")
def test_up_says_where_to_ask_and_what_it_costs(served: World) -> None:
    status = served.json("status")
    assert status["endpoint"]["url"] == served.url
    assert status["endpoint"]["up"] is True
    assert {n["node"]: n["serving"] for n in status["nodes"]} == dict.fromkeys(
        ["prefill/0", "prefill/1", "decode/0", "decode/1", "native/0"], "ready"
    )
    assert {c["name"]: c["up"] for c in status["cells"]} == {
        "cell-decode-0": True,
        "cell-decode-1": True,
        "native": True,
    }
    assert Decimal(status["bill"]["usd_per_hour"]) > 0


def test_a_chat_is_answered_by_a_cell_and_a_batch_by_native(served: World) -> None:
    chat = served.json("ask", "--channel", "chat", "count to 5")
    batch = served.json("ask", "--channel", "batch", "count to 5")
    assert chat["served_by"].startswith("cell-decode-")
    assert batch["served_by"] == "native"
    assert chat["text"] == batch["text"]
    assert chat["finish_reason"] == "stop"


def test_a_second_up_changes_nothing_and_creates_nothing(served: World) -> None:
    before = {c.instance_id for c in billing.read(served.market)}
    plan = served.json("plan")
    assert {a["kind"] for a in plan["actions"]} == {"keep"}
    again = served.run("up", "--yes")
    assert again.stderr == "nothing to change: test is as fleet.yaml says\n"
    assert again.stdout.startswith("test: 5 nodes, 5 ready")
    assert {c.instance_id for c in billing.read(served.market)} == before


def test_the_record_is_a_valid_fleet_file_that_says_what_was_resolved(served: World) -> None:
    record = served.root / "fleet.lock.yaml"
    served.ok("validate", str(record))
    nodes = yaml.safe_load(record.read_text())["lock"]["nodes"]
    assert set(nodes) == {"prefill/0", "prefill/1", "decode/0", "decode/1", "native/0"}
    assert nodes["decode/0"]["gpu"] == "B200:8"
    assert nodes["decode/0"]["fingerprint"]["driver"]


def test_plan_shows_a_changed_setting_field_by_field(served: World) -> None:
    text = served.file.read_text()
    try:
        served.fleet["pools"]["decode"]["engine"] = {"decode_poll_ms": 33}
        served.write()
        plan = served.json("plan")
    finally:
        del served.fleet["pools"]["decode"]["engine"]
        served.file.write_text(text)
    changed = {a["node"]: a for a in plan["actions"] if a["kind"] == "update"}
    assert set(changed) == {"decode/0", "decode/1"}
    assert [c["field"] for c in changed["decode/0"]["changes"]] == ["engine.decode_poll_ms"]
    assert changed["decode/0"]["changes"][0]["after"] == "33"


def test_exec_runs_on_a_pool_and_logs_show_the_service(served: World) -> None:
    said = served.ok("exec", "decode", "--", "nvidia-smi", "-L")
    assert said.count("decode/0 | GPU") == 8
    assert "decode server on" in served.ok("logs", "decode/0")


def test_logs_of_what_is_not_there_are_answered_with_what_is(served: World) -> None:
    done = served.run("logs", "decode/0", "--source", "nosuch")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "error: decode/0 has no log 'nosuch'"
    assert {"image", "gf-test-decode-0"} <= set(done.stderr.replace(",", "").split())
    assert served.ok("logs", "decode/0", "--source", "image", "--tail", "1") != ""


def test_ssh_prints_a_shell_that_works(served: World) -> None:
    with open_session(served.file, state_dir=served.state) as session:
        argv = ssh_command(session, NodeName("decode", 0))
    line = "hostname; echo in:$TWIN_ROOT"
    done = subprocess.run([*argv, line], check=False, capture_output=True, text=True, timeout=30)
    assert "in:/" in done.stdout, done.stderr


def test_no_key_is_in_the_state_the_config_or_a_process_list(served: World) -> None:
    for key in (CHAT_KEY, VIP_KEY, BATCH_KEY):
        found = [p for p in served.state.rglob("*") if p.is_file() and key.encode() in p.read_bytes()]
        assert found == []
        assert key not in served.ok("status", "--output", "json")


def test_state_files_are_the_owners_alone(served: World) -> None:
    open_ones = [
        p
        for p in [*(served.state / "fleets").rglob("*"), *served.state.glob("ledger.db*")]
        if p.is_file() and p.stat().st_mode & 0o077
    ]
    assert open_ones == []


def test_down_ends_when_the_provider_confirms_and_both_bills_agree(fresh: World) -> None:
    fresh.ok("up", "--yes")
    down = fresh.run("down", "--yes", "--output", "json")
    bill = json.loads(down.stdout)["bill"]
    assert down.stderr.count(" gone\n") == 5
    assert "5 nodes gone in" in down.stderr
    charges = billing.read(fresh.market)
    assert all(c.ended is not None for c in charges)
    ours = {line["instance_id"]: Decimal(line["usd"]) for line in bill["lines"]}
    assert ours == {c.instance_id: c.usd for c in charges}
    assert fresh.json("status")["nodes"] == []
    assert fresh.processes() == []
    assert fresh.run("down", "--yes").returncode == 0


def test_cost_agrees_with_the_market_and_says_what_was_saved(served: World) -> None:
    found = served.json("cost")
    assert {part["name"] for part in found["parts"]} == {"prefill", "decode", "native"}
    assert Decimal(found["usd"]) == sum(Decimal(part["usd"]) for part in found["parts"])
    (claim,) = found["claims"]
    assert abs(Decimal(claim["usd"]) - Decimal(claim["ours_usd"])) < Decimal("0.05")
    assert Decimal(found["always_on_usd"]) + Decimal("0.05") > Decimal(found["usd"])  # billed by begun seconds
    assert found["contract_usd"] is None
    shown = served.ok("cost", "--by", "day")
    assert "every node always on: $" in shown
    assert "on contract: unknown (set usd_per_month of every pool)" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert served.run("cost", "--since", "soon").returncode == 2
