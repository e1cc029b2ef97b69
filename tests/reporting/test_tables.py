"""Tables fit 80 columns, lose nothing, and cannot be steered by what a provider says."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from rich.console import Console, RenderableType

from gpufleet.domain.market import InstanceState
from gpufleet.domain.nodes import NodeName
from gpufleet.domain.status import Bill, EndpointStatus, FedStatus, FleetStatus, GateStatus, Serving
from gpufleet.reporting import console as consoles
from gpufleet.reporting.bill import bill_view
from gpufleet.reporting.plan import plan_view, totals
from gpufleet.reporting.status import headline, status_view
from gpufleet.reporting.words import named
from tests.reporting.values import LONG_ID, LONG_POOL, NOW, Action, Change, Plan, bill, offer, status


def shown(view: RenderableType, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False, markup=False, emoji=False).print(view)
    return out.getvalue()


def column(text: str, name: str) -> str:
    """All that stands under a column's head, folds undone."""
    lines = text.splitlines()
    head = next(line for line in lines if name in line.split())
    start = head.index(name)
    end = start + len(name) + len(head[start + len(name) :]) - len(head[start + len(name) :].lstrip())
    return "".join(line[start:end].strip() for line in lines[lines.index(head) + 1 :])


def joined(text: str) -> str:
    """The text without what folding puts in."""
    return "".join(text.split())


DECODE = NodeName("decode", 0)
CREATE = Plan((Action("create", DECODE, offer=offer()),))

VIEWS = {
    "plan": plan_view(CREATE),
    "plan with long names": plan_view(
        Plan(
            (Action("create", NodeName(LONG_POOL, 0), offer=offer("a-very-long-provider-name", "a-very-long-region")),)
        )
    ),
    "plan of a rental": plan_view(Plan((Action("terminate", NodeName(LONG_POOL, 11), instance_id=LONG_ID),))),
    "status": status_view(status(), NOW),
    "status with long names": status_view(status(LONG_POOL, LONG_ID), NOW),
    "bill": bill_view(bill(), NOW),
    "bill with long names": bill_view(bill(running=True, pool=LONG_POOL, instance_id=LONG_ID), NOW),
}


@pytest.mark.parametrize("name", VIEWS)
def test_every_table_fits_80_columns(name: str) -> None:
    assert max(len(line.rstrip()) for line in shown(VIEWS[name]).splitlines()) <= 80


@pytest.mark.parametrize("name", [name for name in VIEWS if "long" in name])
def test_a_long_name_is_folded_and_never_cut(name: str) -> None:
    text = shown(VIEWS[name], width=80)
    assert "…" not in text
    assert LONG_POOL in column(text, "node")


@pytest.mark.parametrize("name", VIEWS)
def test_money_is_never_broken_over_two_lines(name: str) -> None:
    assert "41.50" in shown(VIEWS[name])


def test_a_plan_tells_action_node_offer_price_total_and_time() -> None:
    text = shown(plan_view(CREATE))
    for word in ("create", "decode/0", "mock B200:8 eu-north-1", "$41.50", "2 h 40 min", "$83.00/h", "$1,992.00 a day"):
        assert word in text


def test_a_plan_shows_changed_fields_drift_and_problems() -> None:
    plan = Plan(
        (Action("update", DECODE, reason="settings changed", changes=(Change("mtp", "true", "false"),)),),
        problems=("over budget: $83.00/h, allowed $50.00/h",),
    )
    text = shown(plan_view(plan, drift=(Change("versions.vllm", "0.25.0", None),)))
    assert "update decode/0: settings changed" in text
    assert "update decode/0: mtp: true -> false" in text
    assert "drift: versions.vllm: 0.25.0 -> (none)" in text
    assert "problem: over budget" in text


def test_what_several_nodes_share_is_told_once() -> None:
    change = (Change("mtp", "true", "false"),)
    nodes = [NodeName("decode", index) for index in (0, 1, 2, 5)]
    plan = Plan(
        (
            *(Action("update", node, reason="mtp changed in the file", changes=change) for node in nodes),
            *(Action("terminate", NodeName("native", index), reason="not wanted any more") for index in (0, 1)),
            Action("create", NodeName("prefill", 0), reason="missing"),
        )
    )
    drift = [Change(f"{node}.fingerprint.driver", "580", "590") for node in nodes]
    below = shown(plan_view(plan, drift)).split("total after")[1].splitlines()[1:]
    assert below[:3] == [
        "terminate native/0-1: not wanted any more",
        "update decode/0-2, decode/5: mtp: true -> false",
        "drift: decode/0-2, decode/5.fingerprint.driver: 580 -> 590",
    ]


def test_drift_that_the_plan_undoes_is_not_told_twice() -> None:
    plan = Plan((Action("update", DECODE, reason="mtp changed", changes=(Change("mtp", "true", "false"),)),))
    text = shown(plan_view(plan, drift=(Change("decode/0.settings.mtp", "true", "false"),)))
    assert "drift" not in text


def test_a_plan_that_keeps_all_has_no_column_of_times() -> None:
    assert "ready in" not in shown(plan_view(Plan((Action("keep", DECODE, seconds_to_ready=0),), seconds_to_ready=0)))


@pytest.mark.parametrize("name", VIEWS)
def test_no_line_ends_in_blanks(name: str) -> None:
    assert [line for line in shown(VIEWS[name]).splitlines() if line != line.rstrip()] == []


def test_numbers_that_nobody_knows_have_no_column() -> None:
    cell = replace(status().cells[0], queued=None)
    text = shown(status_view(replace(status(), cells=(cell,)), NOW))
    assert "queued" not in text
    assert "served" in text


def test_the_endpoint_tells_how_many_requests_wait() -> None:
    endpoint = status().endpoint
    assert endpoint is not None
    assert "3 requests waiting" in shown(status_view(replace(status(), endpoint=replace(endpoint, waiting=3)), NOW))
    assert "waiting" not in shown(status_view(replace(status(), endpoint=replace(endpoint, waiting=0)), NOW))


def test_with_nothing_rented_an_endpoint_that_is_down_is_no_news() -> None:
    endpoint = replace(status().endpoint or EndpointStatus("", False, None, ()), up=False)
    text = shown(status_view(FleetStatus("quickstart", (), (), endpoint, Bill(())), NOW))
    assert text == "quickstart: nothing is rented · $0.00/h now · $0.00 so far\n"


def test_a_note_of_several_nodes_is_told_once() -> None:
    node = status().nodes[0]
    nodes = tuple(replace(node, node=NodeName("decode", index), note="slow") for index in range(3))
    assert "decode/0-2: slow" in shown(status_view(replace(status(), nodes=nodes), NOW))


def test_a_bill_sums_up_what_had_ended_before() -> None:
    (old,) = bill().lines
    new = replace(old, instance_id="i-2", started=NOW, ended=NOW, usd=Decimal(1))
    text = shown(bill_view(Bill((old, new)), NOW, since=NOW))
    assert "i-2" in text
    assert "i-1" in text
    text = shown(bill_view(Bill((old, new)), NOW, since=NOW + timedelta(seconds=1)))
    assert [line.split() for line in text.splitlines()[1:]] == [
        ["earlier", "2", "rentals", "$84.00"],
        ["total", "$84.00"],
    ]


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        (["decode/0"], "decode/0"),
        (["decode/1", "decode/0", "decode/2", "decode/9"], "decode/0-2, decode/9"),
        (["prefill/0", "decode/0", "decode/0"], "decode/0, prefill/0"),
        ([], ""),
    ],
)
def test_nodes_are_named_in_runs(nodes: list[str], told: str) -> None:
    assert named(map(NodeName.parse, nodes)) == told


def test_a_plan_without_actions_says_that_there_is_nothing_to_do() -> None:
    assert totals(Plan((), usd_per_hour_after=Decimal(0), seconds_to_ready=0)) == (
        "nothing to do · $0.00/h -> $0.00/h ($0.00 a day)"
    )


def test_an_unknown_price_is_shown_as_unknown() -> None:
    text = shown(plan_view(Plan((Action("keep", DECODE, usd_per_hour=None),))))
    assert "?" in text
    assert "$0.00 " not in text.splitlines()[1]


def test_status_shows_the_machine_until_it_runs_and_then_the_service() -> None:
    node = status().nodes[0]
    booting = replace(status(), nodes=(replace(node, state=InstanceState.BOOTING, serving=Serving.UNKNOWN),))
    assert "booting" in shown(status_view(booting, NOW))
    assert "ready" in shown(status_view(status(), NOW))


def test_status_shows_the_whole_certificate_fingerprint() -> None:
    assert ":".join(["AB"] * 32) in joined(shown(status_view(status(), NOW)))


def test_an_empty_fleet_says_that_nothing_is_rented() -> None:
    empty = FleetStatus("quickstart", (), (), None, Bill(()))
    assert headline(empty) == "quickstart: nothing is rented · $0.00/h now · $0.00 so far"


def test_a_bill_warns_while_something_still_runs() -> None:
    assert "still running (+): $41.50/h" in shown(bill_view(bill(running=True), NOW))
    assert "still running" not in shown(bill_view(bill(), NOW))
    assert "nothing was rented" in shown(bill_view(Bill(()), NOW))


def test_words_of_a_provider_are_neither_markup_nor_terminal_control() -> None:
    node = replace(status().nodes[0], note="[red]boot\x1b[2J failed\nreally[/red]")
    text = shown(status_view(replace(status(), nodes=(node,)), NOW))
    assert "\x1b" not in text
    assert "[red]boot [2J failed really[/red]" in text


def test_there_is_no_colour_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    consoles.stdout().print(status_view(status(), NOW))
    assert "\x1b" not in capsys.readouterr().out


def test_no_color_is_obeyed_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    Console(file=out, force_terminal=True, width=80).print(status_view(status(), NOW))
    assert "\x1b[31m" not in out.getvalue()
    assert "\x1b[32m" not in out.getvalue()


def test_status_tells_of_each_gate_whom_it_feeds_and_what_it_refused() -> None:
    fed = FedStatus(NodeName("decode", 0), 7, 2, 0.5, 1.0, 62_252_000_000)
    gates = (
        GateStatus(NodeName("prefill", 0), True, 2, 1.5, 0.005, 300.0, {"queue": 3, "refused": 1}, (fed,)),
        GateStatus(NodeName("prefill", 1), None, note="out of reach"),
    )
    told = shown(status_view(replace(status(), gates=gates), NOW))
    assert "prefill/0  up        2  300 s+" in told
    assert "decode/0       7       2   <1 s  62.3" in told
    assert "prefill/1: out of reach" in told
    assert "prefill/0 refused: 3 queue, 1 refused" in told
