from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.errors import InvalidFleet
from gpufleet.playbook.compile import compile_job
from gpufleet.playbook.load import load_file, load_shipped

GOOD = "name: a\nsummary: b\ninputs:\n  GF_A: text\n  GF_S: {description: s, secret: true, default: ''}\nsteps:\n"
GOOD += '  - name: one\n    run: echo "$GF_A"\n'
COMMON = {"GF_WORK": "/w", "GF_FLEET": "f", "GF_NODE": "decode/0"}

BAD = [
    ("name: a\nsummary: b\nsteps: []\n", 3, "'steps'"),
    ("name: a\nsteps:\n- {name: x, run: 'true'}\n", 1, "'summary' is missing"),
    (GOOD + "    unles: x\n", 9, "unknown key 'steps.0.unles'"),
    (GOOD + "    timeout: 5\n", 9, "a duration is"),
    (GOOD + "  - name: one\n    run: x\n", 1, "two steps are named 'one'"),
    (GOOD.replace("echo", "set -x; echo"), 8, "set -x"),
    (GOOD.replace("GF_A: text", "PATH: text"), 4, "an input is"),
    (GOOD + "   x\n", None, "not YAML"),
    (GOOD + "\x01", None, "not YAML"),
    ("just text", 1, "a playbook is a mapping"),
    ("", 1, "a playbook is a mapping"),
    (GOOD + "files: [../x]\n", 9, "'files.0'"),
    (GOOD + "files: [nothere.py]\n", None, "cannot be read"),
]


@pytest.mark.parametrize(("text", "line", "message"), BAD)
def test_a_wrong_playbook_is_refused_with_file_and_line(
    text: str, line: int | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(InvalidFleet) as caught:
        load_file(path)
    assert message in caught.value.message
    if line:
        assert caught.value.where == f"{path}:{line}"


def test_an_unknown_playbook_is_named() -> None:
    with pytest.raises(InvalidFleet, match="no playbook named 'imge'"):
        load_shipped("imge")


@pytest.mark.parametrize(
    ("values", "secrets", "message"),
    [
        (COMMON, {}, "input 'GF_A' is missing"),
        ({"GF_A": "x"}, {}, "input 'GF_WORK' is missing"),
        ({**COMMON, "GF_A": "x", "GF_Z": "x"}, {}, "'GF_Z' is not an input"),
        ({**COMMON, "GF_A": "x", "GF_S": "x"}, {}, "'GF_S' is a secret"),
        ({**COMMON, "GF_A": "x" * 130_000}, {}, "longer than"),
    ],
)
def test_inputs_must_fit(values: dict[str, str], secrets: dict[str, str], message: str, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(GOOD)
    with pytest.raises(InvalidFleet) as caught:
        compile_job(load_file(tmp_path / "p.yaml"), job_name="j", values=values, secrets=secrets)
    assert message in caught.value.message


def test_the_script_holds_no_value_and_the_digest_covers_both(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(GOOD)
    playbook = load_file(tmp_path / "p.yaml")
    one, two = (
        compile_job(playbook, job_name="j", values={**COMMON, "GF_A": value}, secrets={"GF_S": "s3cret"})
        for value in ("value-1", "value-2")
    )
    assert one.script == two.script
    assert "value-1" not in one.script
    assert "s3cret" not in one.script
    assert one.digest != two.digest
    assert one.steps == ("one",)
