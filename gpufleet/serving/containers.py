"""A `Launch` as a docker command line. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace

from gpufleet.domain.nodes import NodeName
from gpufleet.serving.launch import Launch
from gpufleet.spec.model import Fleet

RDMA_DEVICES = "/dev/infiniband"


def with_rdma(launch: Launch) -> Launch:
    """The same process with the node's RDMA devices; docker refuses to start when the node has none."""
    return replace(launch, devices=(*launch.devices, RDMA_DEVICES))


def launch_digest(launch: Launch) -> str:
    """Short hash of everything that decides what runs; a container with the same one is left alone."""
    text = json.dumps(asdict(launch), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def node_labels(fleet: Fleet, node: NodeName) -> dict[str, str]:
    """Labels by which a host tells what runs on it and for whom."""
    return {"gpufleet.fleet": fleet.name, "gpufleet.node": str(node)}


def docker_run(launch: Launch, labels: Mapping[str, str]) -> tuple[str, ...]:
    """``docker run -d ...`` for a node; ``gpufleet.digest`` is added to the labels.

    Host network: services bind private addresses, and RDMA and UCX's ephemeral ports cannot be mapped. The NIC needs
    locked memory without a limit, NCCL a large /dev/shm. Logs rotate, since a full disk ends the node.
    """
    argv = launch.argv if launch.keep_entrypoint else launch.argv[1:]
    entrypoint = () if launch.keep_entrypoint else ("--entrypoint", launch.argv[0])
    every_label = {**labels, "gpufleet.digest": launch_digest(launch)}
    return (
        *("docker", "run", "-d", "--name", launch.name),
        *(("--gpus", "all") if launch.gpus else ()),
        *("--network", "host", "--ipc=host", "--shm-size", "64g"),
        *("--cap-add", "IPC_LOCK", "--ulimit", "memlock=-1:-1"),
        *_each("--device", launch.devices),
        *("--restart", "unless-stopped", "--log-opt", "max-size=100m", "--log-opt", "max-file=3"),
        *_each("--label", _pairs(every_label)),
        *_each("-e", _pairs(launch.env)),
        *_each("-v", (f"{path}:{path}:ro" for path in launch.mounts)),
        *_each("-v", (f"{path}:{path}" for path in launch.writes)),
        *entrypoint,
        launch.image,
        *argv,
    )


def _pairs(values: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def _each(option: str, values: Iterable[str]) -> tuple[str, ...]:
    return tuple(word for value in values for word in (option, value))
