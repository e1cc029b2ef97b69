"""The serve and cleanup playbooks, with vLLM's stand-in in a container."""

from __future__ import annotations

import shlex
import subprocess
import urllib.request

import pytest

from gpufleet.remote.errors import JobFailed
from tests.playbook.conftest import Twin, finished
from tests.playbook.test_on_twin import fetch

IMAGE = "vllm/vllm-openai:v0.26.0"


def serve(twin: Twin, digest: str, *flags: str, deadline: str = "60", fleet: str = "fleet") -> dict[str, str]:
    model = f"{twin.work}/weights/GLM"
    argv = [
        *("docker", "run", "-d", "--name", "gf-fleet-native-0", "--network", "host", "--gpus", "all"),
        *("--label", f"gpufleet.fleet={fleet}", "--label", "gpufleet.node=native/0"),
        *("--label", f"gpufleet.digest={digest}", "-e", 'GREETING=it\'s "here"', "-v", f"{model}:{model}:ro"),
        *(IMAGE, model, "--served-model-name", "glm5", "--host", twin.address, "--port", "8001"),
        *("--tensor-parallel-size", "8", *flags),
    ]
    values = {
        "GF_RUNTIME": "docker",
        "GF_SERVICE": "gf-fleet-native-0",
        "GF_RUN_ARGV": shlex.join(argv),
        "GF_RUN_DIGEST": digest,
        "GF_HEALTH_URL": f"http://{twin.address}:8001/health",
        "GF_DEADLINE": deadline,
    }
    return finished(twin.run("serve", **values))


@pytest.fixture
def loaded(twin: Twin) -> Twin:
    fetch(twin)
    subprocess.run(["docker", "pull", IMAGE], check=True, capture_output=True)
    return twin


def test_a_container_is_started_once_and_again_when_what_it_runs_changed(loaded: Twin) -> None:
    assert serve(loaded, "one") == {"start": "done", "healthy": "done"}
    assert urllib.request.urlopen(f"http://{loaded.address}:8001/health").status == 200
    assert serve(loaded, "one")["start"] == "already so"
    assert serve(loaded, "two", "--enforce-eager")["start"] == "done"


def test_a_container_that_ends_is_reported_at_once_with_its_last_lines(loaded: Twin) -> None:
    with pytest.raises(JobFailed, match=r"(?s)has ended \(exited.*--no-such-flag"):
        serve(loaded, "bad", "--no-such-flag", deadline="3600")


def test_a_container_that_does_not_get_ready_in_time_is_reported(loaded: Twin) -> None:
    loaded.describe(time_scale=1, pace={"load_seconds": 600, "download_gbps": 1e9, "pull_gbps": 1e9})
    with pytest.raises(JobFailed, match="is not healthy after 1 s"):
        serve(loaded, "slow", deadline="1")


def test_a_command_line_that_docker_refuses_is_reported(loaded: Twin) -> None:
    with pytest.raises(JobFailed, match="gf-fleet-native-0 cannot be started"):
        loaded.run(
            "serve",
            GF_RUNTIME="docker",
            GF_SERVICE="gf-fleet-native-0",
            GF_RUN_ARGV="docker run -d --no-such-option x",
            GF_RUN_DIGEST="x",
            GF_HEALTH_URL="http://127.0.0.1:1/health",
            GF_DEADLINE="5",
        )


def test_a_program_is_stopped_and_one_that_is_not_there_has_ended_already(loaded: Twin) -> None:
    serve(loaded, "one")
    for _ in range(2):
        loaded.run("stop", GF_RUNTIME="docker", GF_SERVICE="gf-fleet-native-0")
        assert _containers() == []


def test_cleanup_removes_this_fleets_containers_and_no_others(loaded: Twin) -> None:
    serve(loaded, "theirs", fleet="other")
    loaded.run("cleanup")
    assert _containers() == ["gf-fleet-native-0"]
    subprocess.run(["docker", "rm", "-f", "gf-fleet-native-0"], check=True, capture_output=True)
    serve(loaded, "ours")
    loaded.run("cleanup")
    assert _containers() == []


def _containers() -> list[str]:
    done = subprocess.run(["docker", "ps", "-a", "--format", "{{.Names}}"], capture_output=True, text=True, check=True)
    return done.stdout.split()
