"""What a compiled script does with its steps."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gpufleet.remote.errors import JobFailed
from gpufleet.remote.local import LocalMachine
from tests.remote.jobs import kinds, make_job, run, step


@pytest.fixture
def machine(tmp_path: Path) -> LocalMachine:
    return LocalMachine(tmp_path / "work")


def failure(machine: LocalMachine, folder: Path, *steps: dict[str, object], **more: object) -> str:
    with pytest.raises(JobFailed) as caught:
        run(machine, make_job(folder, *steps, **more))  # type: ignore[arg-type]
    return caught.value.message


def test_unless_skips_a_step_and_is_asked_again_each_time(machine: LocalMachine, tmp_path: Path) -> None:
    job = make_job(tmp_path, step("touch there; echo ran >>trace", unless="test -e there"))
    assert kinds(run(machine, job)) == ["step-started", "step-done", "job-done"]
    assert next(e.message for e in run(machine, job)) == "finished earlier"
    (tmp_path / "work/jobs/job/done/one").unlink()
    assert [e.message for e in run(machine, job)][1] == "already so"
    assert (tmp_path / "work/trace").read_text() == "ran\n"


def test_a_step_is_done_only_when_its_verify_holds(machine: LocalMachine, tmp_path: Path) -> None:
    assert "its check does not hold" in failure(machine, tmp_path, step("true", verify="test -e there"))


def test_a_finished_step_runs_again_when_its_verify_no_longer_holds(machine: LocalMachine, tmp_path: Path) -> None:
    job = make_job(tmp_path, step("touch there", verify="test -e there"))
    run(machine, job)
    assert "step-skipped" in kinds(run(machine, job))
    (tmp_path / "work/there").unlink()
    assert kinds(run(machine, job)) == ["step-started", "step-done", "job-done"]


def test_only_a_step_whose_own_inputs_changed_runs_again(machine: LocalMachine, tmp_path: Path) -> None:
    steps = (step('echo "$GF_A"', "a"), step('echo "$GF_B"', "b"))
    inputs = {"GF_A": "text", "GF_B": "text"}
    run(machine, make_job(tmp_path, *steps, inputs=inputs, values={"GF_A": "1", "GF_B": "1"}))
    events = run(machine, make_job(tmp_path, *steps, inputs=inputs, values={"GF_A": "1", "GF_B": "2"}))
    assert [(e.kind, e.step) for e in events if e.kind == "step-done"] == [("step-done", "b")]


def test_a_step_runs_again_when_its_text_changed(machine: LocalMachine, tmp_path: Path) -> None:
    run(machine, make_job(tmp_path, step("echo 1 >>trace")))
    run(machine, make_job(tmp_path, step("echo 2 >>trace")))
    assert (tmp_path / "work/trace").read_text() == "1\n2\n"


def test_always_runs_every_time(machine: LocalMachine, tmp_path: Path) -> None:
    job = make_job(tmp_path, step("echo ran >>trace", always=True))
    run(machine, job)
    run(machine, job)
    assert (tmp_path / "work/trace").read_text() == "ran\nran\n"


def test_when_decides_by_the_inputs(machine: LocalMachine, tmp_path: Path) -> None:
    job = make_job(tmp_path, step("false", when='[ "$GF_A" = yes ]'), inputs={"GF_A": "text"}, values={"GF_A": "no"})
    assert [e.message for e in run(machine, job)] == ["", "not needed here", ""]


def test_a_command_that_fails_in_the_middle_ends_the_step(machine: LocalMachine, tmp_path: Path) -> None:
    assert "exit 1" in failure(machine, tmp_path, step("false\ntouch there"))
    assert "exit 2" in failure(machine, tmp_path, step('echo "$GF_NOT_SET"'))
    assert not (tmp_path / "work/there").exists()


def test_retries_go_on_until_the_step_works(machine: LocalMachine, tmp_path: Path) -> None:
    text = "echo x >>tries; echo too early; [ $(wc -l <tries) -eq 3 ]"
    events = run(machine, make_job(tmp_path, step(text, retries=5, retry_wait="1s")))
    assert kinds(events) == ["step-started", "step-retried", "step-retried", "step-done", "job-done"]
    assert events[1].message == "too early"


def test_fail_is_final_and_its_text_is_the_message(machine: LocalMachine, tmp_path: Path) -> None:
    message = failure(machine, tmp_path, step('echo x >>tries; fail "disk \\"full\\""', retries=5, retry_wait="1s"))
    assert message.endswith('failed (exit 1): disk "full"')
    assert (tmp_path / "work/tries").read_text() == "x\n"


def test_a_timeout_ends_the_whole_group_of_a_step(machine: LocalMachine, tmp_path: Path) -> None:
    text = "echo working; sleep 600 & echo $! >pid; wait"
    assert "not done after 1s\nworking" in failure(machine, tmp_path, step(text, timeout="1s"))
    pid = (tmp_path / "work/pid").read_text().strip()
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text()


def test_progress_is_reported_by_the_step_and_by_asking_beside_it(machine: LocalMachine, tmp_path: Path) -> None:
    text = "progress 10 started; progress oops; while [ ! -e asked ]; do sleep 0.05; done; sleep 0.3"
    job = make_job(tmp_path, step(text, progress="touch asked; echo 42.5 3 of 7"))
    seen = [(e.percent, e.message) for e in run(machine, job) if e.kind == "progress"]
    assert seen == [(10, "started"), (42.5, "3 of 7")]


def test_data_is_reported_when_the_step_is_done_and_remembered_when_it_is_skipped(
    machine: LocalMachine, tmp_path: Path
) -> None:
    job = make_job(tmp_path, step("data image_id 'sha256:\"abc\"'; data other x"))
    for _ in range(2):
        assert dict(run(machine, job)[-2].data) == {"image_id": 'sha256:"abc"', "other": "x"}


def test_values_of_any_kind_arrive_as_they_are(machine: LocalMachine, tmp_path: Path) -> None:
    value = 'it\'s "quoted" $HOME `id` \\ \n\ttwo lines, ünïcode and a trailing newline\n'
    job = make_job(tmp_path, step('printf %s "$GF_A" >value'), inputs={"GF_A": "text"}, values={"GF_A": value})
    run(machine, job)
    assert (tmp_path / "work/value").read_text() == value
    assert "quoted" not in job.script


def test_here_documents_in_a_step_keep_working(machine: LocalMachine, tmp_path: Path) -> None:
    run(machine, make_job(tmp_path, step("cat >file <<'END'\n  $x\nEND\n")))
    assert (tmp_path / "work/file").read_text() == "  $x\n"


def test_files_of_a_playbook_are_there_for_its_steps(machine: LocalMachine, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files/tool.py").write_text("print('$HOME `x` \\\\')")
    run(machine, make_job(tmp_path, step('python3 "$GF_FILES/tool.py" >out'), files=["tool.py"]))
    assert (tmp_path / "work/out").read_text() == "$HOME `x` \\\n"


def test_the_fingerprint_is_the_first_event(machine: LocalMachine, tmp_path: Path) -> None:
    events = run(
        machine,
        make_job(
            tmp_path, step('[ "$(fact cpus)" = "$(nproc)" ]; [ "$(fact disk_free_bytes)" -gt 0 ]'), fingerprint=True
        ),
    )
    assert events[0].kind == "fingerprint"
    assert {"ram_bytes", "cpus", "kernel", "os", "disk_bytes"} <= events[0].data.keys()


def test_events_carry_the_time_of_the_node(machine: LocalMachine, tmp_path: Path) -> None:
    before = subprocess.run(["date", "+%s"], capture_output=True, text=True, check=True).stdout
    events = run(machine, make_job(tmp_path, step("true")))
    assert all(int(before) - 2 <= e.at <= int(before) + 120 for e in events)


def test_every_line_of_the_event_log_is_json(machine: LocalMachine, tmp_path: Path) -> None:
    text = 'note "$(printf \'a\\tb\\nc\\001\\\\"\')"; note "$(head -c 100000 /dev/zero | tr \'\\0\' x)"'
    run(machine, make_job(tmp_path, step(text)))
    lines = (tmp_path / "work/jobs/job/events").read_text().splitlines()
    messages = [json.loads(line)["message"] for line in lines]
    assert 'a b\nc\\"' in messages
    assert max(len(message) for message in messages) == 2000
