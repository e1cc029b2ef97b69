"""Containers of the docker stand-in: they run, restart, log and end as docker's do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.twin.nodes import docker, end_all, eventually, make_root, processes, run


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    folder = make_root(tmp_path / "root")
    yield folder
    end_all(folder)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node on which nothing is left running."""
    return make_root(tmp_path_factory.mktemp("bare") / "root")


def inspect(root: Path, name: str, shape: str) -> str:
    return docker(root, "inspect", "--format", shape, name).stdout.strip()


def test_a_detached_container_runs_on_and_prints_its_id(root: Path) -> None:
    done = docker(root, "run", "-d", "--name", "web", "ubuntu", "sleep", "81")
    assert done.returncode == 0 and len(done.stdout.strip()) == 64
    assert inspect(root, "web", "{{.State.Running}} {{.State.Status}} {{.Config.Image}}") == "true running ubuntu"
    assert processes(root, "81")


def test_in_the_foreground_streams_stay_apart_and_the_status_is_the_containers(root: Path) -> None:
    done = docker(root, "run", "--rm", "ubuntu", "sh", "-c", "echo out; echo err >&2; exit 9")
    assert (done.returncode, done.stdout) == (9, "out\n")
    assert done.stderr == "Unable to find image 'ubuntu' locally\nerr\n"
    assert docker(root, "ps", "-aq").stdout == ""


def test_stdin_reaches_a_container_only_with_interactive(root: Path) -> None:
    docker(root, "pull", "ubuntu")
    assert docker(root, "run", "--rm", "-i", "ubuntu", "cat", stdin="hello").stdout == "hello"
    assert docker(root, "run", "--rm", "ubuntu", "cat", stdin="hello").stdout == ""


def test_logs_keep_order_streams_and_tail(root: Path) -> None:
    docker(
        root, "run", "--name", "talk", "ubuntu", "sh", "-c", "for i in 1 2 3; do echo $i; done; echo e >&2; printf end"
    )
    logs = docker(root, "logs", "talk")
    assert (logs.stdout, logs.stderr) == ("1\n2\n3\nend", "e\n")
    assert docker(root, "logs", "--tail", "1", "talk").stdout == "end"
    assert docker(root, "logs", "--since", "1h", "talk").stdout == "1\n2\n3\nend"
    assert docker(root, "logs", "--since", "2100-01-01T00:00:00Z", "talk").stdout == ""


def test_followed_logs_end_with_the_container(root: Path) -> None:
    docker(root, "run", "-d", "--name", "talk", "ubuntu", "sh", "-c", "echo a; sleep 0.4; echo b")
    assert docker(root, "logs", "-f", "talk").stdout == "a\nb\n"


def test_a_restart_policy_starts_it_again_and_stop_ends_that(root: Path) -> None:
    docker(root, "run", "-d", "--name", "again", "--restart", "unless-stopped", "ubuntu", "sh", "-c", "exit 3")
    eventually(lambda: int(inspect(root, "again", "{{.RestartCount}}")) >= 2, "two restarts")
    assert docker(root, "stop", "again").stdout == "again\n"
    assert inspect(root, "again", "{{.State.Status}} {{.State.ExitCode}}") == "exited 3"


def test_on_failure_stops_at_success_and_at_its_count(root: Path) -> None:
    docker(root, "run", "-d", "--name", "fine", "--restart", "on-failure", "ubuntu", "true")
    docker(root, "run", "-d", "--name", "never", "--restart", "on-failure:2", "ubuntu", "false")
    assert docker(root, "wait", "fine", "never").stdout == "0\n1\n"
    assert inspect(root, "never", "{{.RestartCount}}") == "2"


def test_stop_asks_first_and_kills_at_the_end_of_its_patience(root: Path) -> None:
    docker(root, "run", "-d", "--name", "kind", "ubuntu", "sh", "-c", 'trap "exit 5" TERM; sleep 82 & wait')
    docker(root, "run", "-d", "--name", "deaf", "ubuntu", "sh", "-c", 'trap "" TERM; echo up; sleep 83; sleep 83')
    eventually(lambda: docker(root, "logs", "deaf").stdout == "up\n", "the trap")
    assert docker(root, "stop", "-t", "1", "kind", "deaf").returncode == 0
    assert inspect(root, "kind", "{{.State.ExitCode}}") == "5"
    assert inspect(root, "deaf", "{{.State.ExitCode}}") == "137"


def test_nothing_of_a_container_outlives_its_first_process(root: Path) -> None:
    docker(root, "run", "--name", "parent", "ubuntu", "sh", "-c", "sleep 84 & setsid sleep 85 & sleep 0.2; exit 0")
    assert not processes(root, "84") and not processes(root, "85")


def test_start_and_restart_run_it_anew(root: Path) -> None:
    docker(root, "run", "--name", "once", "ubuntu", "echo", "hi")
    docker(root, "start", "once")
    eventually(lambda: docker(root, "logs", "once").stdout == "hi\nhi\n", "the second run")
    docker(root, "restart", "once")
    eventually(lambda: docker(root, "logs", "once").stdout == "hi\nhi\nhi\n", "the third run")


def test_exec_runs_beside_the_first_process_and_ends_with_it(root: Path) -> None:
    docker(root, "run", "-d", "--name", "web", "-e", "COLOUR=blue", "ubuntu", "sleep", "86")
    assert docker(root, "exec", "-e", "SIZE=2", "web", "sh", "-c", "echo $COLOUR $SIZE; exit 4").stdout == "blue 2\n"
    docker(root, "exec", "-d", "web", "sleep", "87")
    eventually(lambda: processes(root, "87"), "the exec")
    docker(root, "kill", "web")
    assert not processes(root, "87")
    assert docker(root, "exec", "web", "true").stderr.startswith("Error response from daemon: container ")


def test_a_container_whose_supervisor_was_killed_reads_as_ended(root: Path) -> None:
    docker(root, "run", "-d", "--name", "web", "ubuntu", "sleep", "88")
    state = json.loads(next((root / "docker/containers").glob("*/state.json")).read_text())
    os.kill(state["supervisor"], signal.SIGKILL)
    eventually(lambda: inspect(root, "web", "{{.State.Status}} {{.State.ExitCode}}") == "exited 137", "noticing")
    eventually(lambda: not processes(root, "88"), "the end of its process")


def test_a_killed_docker_command_leaves_its_container_running(root: Path) -> None:
    docker(root, "pull", "ubuntu")
    client = subprocess.Popen(
        [root / "bin/docker", "run", "--name", "job", "ubuntu", "sh", "-c", "echo on; exec sleep 89"]
    )
    eventually(lambda: processes(root, "89"), "starting")
    client.kill()
    client.wait()
    assert inspect(root, "job", "{{.State.Running}}") == "true"


def test_a_signal_to_the_docker_command_reaches_the_container(root: Path) -> None:
    docker(root, "pull", "ubuntu")
    client = subprocess.Popen(
        [
            root / "bin/docker",
            "run",
            "--name",
            "job",
            "ubuntu",
            "sh",
            "-c",
            'trap "exit 6" TERM; echo up; sleep 90 & wait',
        ]
    )
    eventually(lambda: docker(root, "logs", "job").stdout == "up\n", "the trap")
    client.terminate()
    assert client.wait(20) == 6


def test_a_container_holds_no_lock_of_the_script_that_started_it(root: Path) -> None:
    docker(root, "pull", "ubuntu")
    script = f"exec 3>{root}/lock; flock 3; {root}/bin/docker run -d --name web ubuntu sleep 91"
    assert run(root, "sh", "-c", script).returncode == 0
    assert run(root, "flock", "-n", f"{root}/lock", "true").returncode == 0


def test_only_asked_for_variables_are_inside(root: Path, tmp_path: Path) -> None:
    (tmp_path / "env").write_text("# comment\nFROM_FILE=with spaces\nHOME\nABSENT\n")
    docker(root, "pull", "ubuntu")
    done = run(
        root, "docker", "run", "--rm", "--env-file", str(tmp_path / "env"), "-e", "GIVEN=1", "-e", "PASSED",
        "ubuntu", "env",
        env={"PASSED": "on", "SECRET": "never"},
    )  # fmt: skip
    env = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert (env["FROM_FILE"], env["GIVEN"], env["PASSED"]) == ("with spaces", "1", "on")
    assert "SECRET" not in env and "ABSENT" not in env


def test_an_image_has_no_python_of_the_machine(root: Path) -> None:
    assert docker(root, "run", "--rm", "ubuntu", "python3", "-c", "1").returncode == 127


def test_ps_filters_and_formats(root: Path) -> None:
    for name, fleet in (("gf-one", "alpha"), ("gf-two", "beta")):
        docker(
            root,
            "run",
            "-d",
            "--name",
            name,
            "--label",
            f"gpufleet.fleet={fleet}",
            "-l",
            "kind=x",
            "ubuntu",
            "sleep",
            "92",
        )
    docker(root, "run", "--name", "ended", "ubuntu", "true")

    def names(*argv: str) -> list[str]:
        return docker(root, "ps", "--format", "{{.Names}}", *argv).stdout.split()

    assert names() == ["gf-two", "gf-one"]
    assert names("-a") == ["ended", "gf-two", "gf-one"]
    assert names("--filter", "label=gpufleet.fleet=alpha") == ["gf-one"]
    assert names("-f", "label=kind", "-f", "name=two") == ["gf-two"]
    assert names("-f", "name=^gf-one$") == ["gf-one"]
    assert names("-f", "status=exited") == ["ended"]
    row = docker(root, "ps", "--format", '{{.Names}}\\t{{.Label "gpufleet.fleet"}}\\t{{.State}}').stdout.splitlines()[0]
    assert row == "gf-two\tbeta\trunning"
    assert json.loads(docker(root, "ps", "--format", "{{json .}}").stdout.splitlines()[0])["Names"] == "gf-two"
    assert len(docker(root, "ps", "-q").stdout.split()[0]) == 12
    assert docker(root, "ps", "-f", "colour=red").returncode == 1


def test_inspect_tells_labels_mounts_and_policy(root: Path) -> None:
    docker(
        root, "run", "-d", "--name", "web", "--label", "a.b=c", "-v", f"{root}/work:{root}/work:ro",
        "--restart", "always", "-e", "K=V", "ubuntu", "sleep", "93",
    )  # fmt: skip
    assert inspect(root, "web", '{{index .Config.Labels "a.b"}}/{{index .Config.Labels "none"}}') == "c/"
    assert inspect(root, "web", "{{.HostConfig.RestartPolicy.Name}} {{json .Config.Cmd}}") == 'always ["sleep","93"]'
    document = json.loads(docker(root, "inspect", "web").stdout)[0]
    assert document["HostConfig"]["Binds"] == [f"{root}/work:{root}/work:ro"]
    assert "K=V" in document["Config"]["Env"] and document["Name"] == "/web"
    assert (
        inspect(root, "web", "{{if .State.Running}}up{{else}}down{{end}}{{range .Mounts}} {{.Source}}{{end}}")
        == f"up {root}/work"
    )


@pytest.mark.parametrize(
    ("argv", "status", "words"),
    [
        (["run", "--frobnicate", "ubuntu"], 125, "unknown flag: --frobnicate"),
        (["run", "-Z", "ubuntu"], 125, "unknown shorthand flag: 'Z' in -Z"),
        (["run", "--name"], 125, "flag needs an argument: --name"),
        (["run"], 1, "requires at least 1 argument"),
        (["run", "--rm", "--restart", "always", "ubuntu"], 125, "cannot specify both --restart and --rm"),
        (["run", "--restart", "sometimes", "ubuntu"], 125, "unknown policy 'sometimes'"),
        (["run", "--name", "a b", "ubuntu"], 125, "Invalid container name (a b)"),
        (["run", "--shm-size", "big", "ubuntu"], 125, "invalid size: 'big'"),
        (["run", "--ulimit", "memlock", "ubuntu"], 125, "invalid ulimit argument: memlock"),
        (["run", "--cap-add", "FLY", "ubuntu"], 125, 'unknown capability: "CAP_FLY"'),
        (["run", "--device", "/dev/nothing", "ubuntu"], 125, 'custom device "/dev/nothing": no such file or directory'),
        (["run", "--gpus", "some", "ubuntu"], 125, 'invalid argument "some" for "--gpus" flag'),
        (["run", "-v", "/tmp:/tmp:rx", "ubuntu"], 125, "invalid mode: rx"),
        (["run", "--mount", "type=bind,source=/no/x,target=/no/x", "ubuntu"], 125, "bind source path does not exist"),
        (["run", "--env-file", "/no/such", "ubuntu"], 125, "open /no/such: no such file or directory"),
        (["run", "--rm", "ubuntu", "frob"], 127, 'exec: "frob": executable file not found in $PATH'),
        (["run", "no/such:image"], 125, "pull access denied for no/such"),
        (["run", "ubuntu:1.0"], 125, "manifest unknown"),
        (["pull", "vllm/vllm-openai:v9"], 1, "manifest for vllm/vllm-openai:v9 not found: manifest unknown"),
        (["pull", "UPPER"], 1, "repository name must be lowercase"),
        (["pull"], 1, "requires 1 argument"),
        (["inspect", "nothing"], 1, "no such object: nothing"),
        (["image", "inspect", "nothing"], 1, "No such image: nothing:latest"),
        (["logs", "nothing"], 1, "No such container: nothing"),
        (["stop", "nothing"], 1, "No such container: nothing"),
        (["rm", "nothing"], 1, "No such container: nothing"),
        (["rm", "-f", "nothing"], 0, "No such container: nothing"),
        (["frob"], 1, "unknown command: docker frob"),
        (["ps", "--format", "{{.Nope}}"], 0, ""),
    ],
)  # fmt: skip
def test_what_docker_refuses_is_refused_in_its_words(bare: Path, argv: list[str], status: int, words: str) -> None:
    done = docker(bare, *argv)
    assert done.returncode == status
    assert words in done.stderr


def test_a_taken_name_is_a_conflict(root: Path) -> None:
    docker(root, "run", "--name", "web", "ubuntu", "true")
    done = docker(root, "run", "-d", "--name", "web", "ubuntu", "true")
    assert done.returncode == 125
    assert 'Conflict. The container name "/web" is already in use by container' in done.stderr


def test_a_running_container_is_removed_only_by_force(root: Path) -> None:
    docker(root, "run", "-d", "--name", "web", "ubuntu", "sleep", "94")
    assert "container is running" in docker(root, "rm", "web").stderr
    assert docker(root, "rm", "-f", "web").returncode == 0
    assert not processes(root, "94") and docker(root, "ps", "-aq").stdout == ""


def test_two_commands_with_one_name_make_one_container(root: Path) -> None:
    docker(root, "pull", "ubuntu")
    racers = [
        subprocess.Popen(
            [root / "bin/docker", "run", "-d", "--name", "web", "ubuntu", "sleep", "95"],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(6)
    ]
    codes = []
    for racer in racers:
        racer.communicate()
        codes.append(racer.returncode)
    assert sorted(codes) == [0, 125, 125, 125, 125, 125]
    assert len(docker(root, "ps", "-aq").stdout.split()) == 1


@pytest.mark.parametrize(
    ("facts", "argv", "words"),
    [
        ({"gpu_count_visible": 0}, ["run", "--gpus", "all", "ubuntu"], "could not select device driver"),
        ({"faults": ["no-gpu-runtime"]}, ["run", "--gpus", "all", "ubuntu"], "could not select device driver"),
        ({"rdma": None}, ["run", "--device", "/dev/infiniband", "ubuntu"], 'custom device "/dev/infiniband"'),
        ({"faults": ["docker-down"]}, ["ps"], "Cannot connect to the Docker daemon"),
        ({"faults": ["registry-down"]}, ["pull", "ubuntu"], "request canceled"),
    ],
)
def test_a_broken_machine_refuses(tmp_path: Path, facts: dict[str, object], argv: list[str], words: str) -> None:
    done = docker(make_root(tmp_path / "broken", **facts), *argv)
    assert done.returncode != 0 and words in done.stderr


def test_the_flags_of_the_service_are_taken(root: Path) -> None:
    done = docker(
        root, "run", "-d", "--name", "svc", "--gpus", "all", "--network", "host", "--ipc=host", "--shm-size", "64g",
        "--cap-add", "IPC_LOCK", "--ulimit", "memlock=-1:-1", "--device", "/dev/infiniband",
        "--restart", "unless-stopped",
        "--log-opt", "max-size=100m", "--log-opt", "max-file=3", "--label", "gpufleet.digest=1", "-e", "A=b",
        "-v", f"{root}/work:{root}/work:ro", "--entrypoint", "sleep", "ubuntu", "96",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
