"""From a launch to a docker command line."""

from __future__ import annotations

from dataclasses import replace

from gpufleet.domain.nodes import NodeName
from gpufleet.serving import commands
from gpufleet.serving.containers import docker_run, launch_digest, node_labels, with_rdma
from gpufleet.serving.launch import Launch
from tests.serving.fleets import fleet, topology

LAUNCH = Launch(
    name="gf-demo-native-0",
    image="gpufleet/native:abc",
    argv=("vllm", "serve", "/gf/GLM"),
    health_url="http://10.0.3.1:8001/health",
    env={"HF_HUB_OFFLINE": "1"},
    mounts=("/gf/GLM",),
)
LABELS = {"gpufleet.fleet": "demo"}


def test_the_whole_command_line() -> None:
    assert " ".join(docker_run(LAUNCH, LABELS)) == (
        "docker run -d --name gf-demo-native-0 --gpus all --network host --ipc=host --shm-size 64g"
        " --cap-add IPC_LOCK --ulimit memlock=-1:-1"
        " --restart unless-stopped --log-opt max-size=100m --log-opt max-file=3"
        f" --label gpufleet.fleet=demo --label gpufleet.digest={launch_digest(LAUNCH)}"
        " -e HF_HUB_OFFLINE=1 -v /gf/GLM:/gf/GLM:ro --entrypoint vllm gpufleet/native:abc serve /gf/GLM"
    )


def test_an_entrypoint_that_is_needed_stays_and_runs_the_command() -> None:
    line = docker_run(replace(LAUNCH, keep_entrypoint=True), LABELS)
    assert "--entrypoint" not in line
    assert line[-4:] == ("gpufleet/native:abc", "vllm", "serve", "/gf/GLM")


def test_a_router_gets_no_gpu() -> None:
    assert "--gpus" not in docker_run(replace(LAUNCH, gpus=False), LABELS)


def test_rdma_devices_are_passed_only_where_the_node_has_them() -> None:
    assert "--device" not in docker_run(LAUNCH, LABELS)
    line = docker_run(with_rdma(LAUNCH), LABELS)
    assert line[line.index("--device") + 1] == "/dev/infiniband"


def test_the_digest_changes_with_whatever_changes_the_process_and_with_nothing_else() -> None:
    changed = [
        replace(LAUNCH, argv=(*LAUNCH.argv, "--seed=1")),
        replace(LAUNCH, env={"HF_HUB_OFFLINE": "0"}),
        replace(LAUNCH, image="gpufleet/native:def"),
        replace(LAUNCH, mounts=()),
        with_rdma(LAUNCH),
    ]
    assert len({launch_digest(launch) for launch in [LAUNCH, *changed]}) == len(changed) + 1
    assert launch_digest(replace(LAUNCH)) == launch_digest(LAUNCH)


def test_tilert_keeps_its_entrypoint_and_vllm_does_not() -> None:
    spec = fleet()
    nodes = topology(spec)
    paths = commands.Paths("/gf/GLM", "/gf/GLM-TileRT")
    assert commands.decode_launch(spec, nodes, NodeName("decode", 0), paths).keep_entrypoint
    assert not commands.prefill_launch(spec, nodes, NodeName("prefill", 0), paths).keep_entrypoint
    assert not commands.pd_router_launch(spec, nodes.cells[0], paths).keep_entrypoint


def test_labels_name_the_fleet_and_the_node() -> None:
    assert node_labels(fleet(), NodeName("decode", 1)) == {
        "gpufleet.fleet": "demo",
        "gpufleet.node": "decode/1",
    }
