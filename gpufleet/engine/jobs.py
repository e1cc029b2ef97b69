"""Which playbook runs on which node with which inputs. Pure: values in, compiled jobs out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from gpufleet.catalog.facts import model
from gpufleet.catalog.sizing import needs
from gpufleet.domain.market import Runtime
from gpufleet.domain.nodes import NodeName, Role
from gpufleet.engine.paths import NodePaths
from gpufleet.errors import UsageError
from gpufleet.playbook.compile import compile_job
from gpufleet.playbook.job import CompiledJob
from gpufleet.playbook.load import Playbook, load_shipped
from gpufleet.serving import commands, gate
from gpufleet.serving.containers import docker_run, launch_digest, node_labels, with_rdma
from gpufleet.serving.expect import hello_expectations
from gpufleet.serving.images import RoleImage, role_image
from gpufleet.serving.inside import image_environment, process_environment
from gpufleet.serving.launch import Launch
from gpufleet.serving.store import RCLONE_VERSION, store_place
from gpufleet.serving.topology import WEIGHTS_SHARE_PORT, Cell, Topology
from gpufleet.spec.feeding import gated_nodes
from gpufleet.spec.model import Fleet

DRAIN_SECONDS = 300.0
"""A stream that is longer is cut: the node behind it costs money that the user no longer wants to spend."""
MIN_DRIVER = "580"
"""CUDA 13's compatibility floor; below it the engine stops with "driver is too old" after the download."""
HF_VERSION = "1.2.3"


@dataclass(frozen=True, repr=False)
class StoreKeys:
    """What signs requests to an S3 store; both empty for a store that is a directory."""

    access_key: str = ""
    secret_key: str = ""

    @property
    def inputs(self) -> dict[str, str]:
        return {"STORE_ACCESS_KEY": self.access_key, "STORE_SECRET_KEY": self.secret_key}


@cache
def _playbook(name: str) -> Playbook:
    return load_shipped(name)


@dataclass(frozen=True)
class NodeJobs:
    """The jobs of one node. ``workdir`` is where gpufleet keeps its files there."""

    fleet: Fleet
    node: NodeName
    workdir: str
    rdma: bool = False
    """Give containers that move KV cache the node's RDMA devices."""
    runtime: Runtime = Runtime.DOCKER

    @property
    def role(self) -> Role:
        return self.fleet.role_of(self.node.pool)

    @property
    def _image(self) -> RoleImage:
        return role_image(self.fleet, self.role)

    @property
    def _image_env(self) -> str:
        return image_environment(self._image, self.workdir) if self.runtime is Runtime.INSIDE else ""

    @property
    def _model_dir(self) -> str:
        return NodePaths(self.workdir).model(self.fleet.model.id)

    @property
    def _converted_dir(self) -> str:
        return NodePaths(self.workdir).converted(self.fleet.model.id)

    @property
    def _gate_dir(self) -> str:
        return NodePaths(self.workdir).gate

    @property
    def _paths(self) -> commands.Paths:
        return commands.Paths(model_dir=self._model_dir, converted_dir=self._converted_dir)

    def check(self) -> CompiledJob:
        """Driver, GPUs, disk, RAM and RDMA, before anything big is downloaded; reports the fingerprint."""
        pool = self.fleet.pools[self.node.pool]
        need = needs(self.fleet.model.id, self.role)
        return self._compile(
            "check",
            GF_RUNTIME=self.runtime,
            GF_GPU_MODEL=pool.gpu.model,
            GF_GPU_COUNT=str(pool.gpu.count),
            GF_MIN_DRIVER=MIN_DRIVER,
            GF_MIN_DISK_GB=str(pool.disk_gb or need.disk_gb),
            GF_MIN_RAM_GB=str(need.ram_gb),
            GF_RDMA=self.fleet.network.rdma,
        )

    def image(self) -> CompiledJob:
        """The role's container image: the base pulled, the missing packages added."""
        image = self._image
        if self.runtime is Runtime.INSIDE:
            return self._compile(
                "packages",
                GF_BASE_IMAGE=image.base,
                GF_IMAGE_ENV=self._image_env,
                GF_ALONE=" ".join(image.alone),
                GF_PACKAGES=" ".join(image.packages),
            )
        return self._compile("image", GF_BASE_IMAGE=image.base, GF_IMAGE_TAG=image.tag, GF_DOCKERFILE=image.dockerfile)

    def fetch(self, hf_token: str) -> CompiledJob:
        """The checkpoint from Hugging Face; a decode node that has converted weights needs it no more."""
        converted = {"GF_CONVERTED_DIR": self._converted_dir, **self._layout} if self.role is Role.DECODE else {}
        return self._compile(
            "weights-fetch",
            secrets={"HF_TOKEN": hf_token},
            GF_MODEL_DIR=self._model_dir,
            GF_HF_VERSION=HF_VERSION,
            **self._source,
            **converted,
        )

    def convert(self) -> CompiledJob:
        """The checkpoint in TileRT's layout."""
        return self._compile(
            "weights-convert",
            suffix="",
            secrets={},
            GF_RUNTIME=self.runtime,
            GF_IMAGE_TAG=role_image(self.fleet, Role.DECODE).tag,
            GF_IMAGE_ENV=self._image_env,
            GF_MODEL_DIR=self._model_dir,
            GF_CONVERTED_DIR=self._converted_dir,
            **self._source,
            **self._layout,
            **self._size,
            **self._room,
        )

    def pull(self, keys: StoreKeys) -> CompiledJob:
        """Converted weights from the store, where it has them."""
        return self._compile(
            "weights-pull",
            secrets=keys.inputs,
            GF_CONVERTED_DIR=self._converted_dir,
            **self._source,
            **self._layout,
            **self._store,
        )

    def push(self, keys: StoreKeys) -> CompiledJob:
        """This node's converted weights into the store."""
        return self._compile(
            "weights-push", suffix="", secrets=keys.inputs, GF_CONVERTED_DIR=self._converted_dir, **self._store
        )

    def verify(self) -> CompiledJob:
        """Compare this node's converted weights with their manifest; changes nothing."""
        return self._compile(
            "weights-verify",
            suffix="",
            secrets={},
            GF_CONVERTED_DIR=self._converted_dir,
            **self._source,
            **self._layout,
            **self._size,
        )

    @property
    def _source(self) -> dict[str, str]:
        return {"GF_MODEL_ID": self.fleet.model.id, "GF_REVISION": self.fleet.model.revision}

    @property
    def _layout(self) -> dict[str, str]:
        return {"GF_TILERT_VERSION": self.fleet.versions.tilert, "GF_PROFILE": self.fleet.model.profile}

    @property
    def _size(self) -> dict[str, str]:
        facts = model(self.fleet.model.id)
        return {"GF_LAYERS": str(facts.layers), "GF_DEVICES": str(facts.tilert_gpus)}

    @property
    def _room(self) -> dict[str, str]:
        real = not self.fleet.model.stand_in
        memory, disk = (
            needs(self.fleet.model.id, Role.DECODE).converting_ram_gb,
            model(self.fleet.model.id).converted_gb,
        )
        return {"GF_MIN_RAM_GB": str(memory if real else 0), "GF_MIN_DISK_GB": str(disk if real else 0)}

    @property
    def _store(self) -> dict[str, str]:
        place = store_place(self.fleet)
        if place is None:
            raise UsageError("this fleet has no store for its weights", hint="set weights.store in the fleet file")
        return {
            "GF_STORE": place.path,
            "GF_STORE_ROOT": place.root,
            "GF_STORE_ENDPOINT": place.endpoint,
            "GF_STORE_REGION": place.region,
            "GF_RCLONE_VERSION": RCLONE_VERSION,
        }

    def share(self, private_ip: str) -> CompiledJob:
        """Offer the converted weights to the other decode nodes."""
        return self._compile(
            "weights-share",
            GF_CONVERTED_DIR=self._converted_dir,
            GF_SHARE_IP=private_ip,
            GF_SHARE_PORT=str(WEIGHTS_SHARE_PORT),
        )

    def copy(self, source_ip: str) -> CompiledJob:
        """Take the converted weights from the node that shares them."""
        return self._compile(
            "weights-copy",
            GF_CONVERTED_DIR=self._converted_dir,
            GF_SOURCE_URL=f"http://{source_ip}:{WEIGHTS_SHARE_PORT}",
        )

    def launch(self, topology: Topology) -> Launch:
        """The role's main process."""
        build = {
            Role.DECODE: commands.decode_launch,
            Role.PREFILL: commands.prefill_launch,
            Role.NATIVE: commands.native_launch,
        }[self.role]
        launch = build(self.fleet, topology, self.node, self._paths)
        return with_rdma(launch) if self.rdma else launch

    def launches(self, topology: Topology) -> list[Launch]:
        """Everything that runs on the node: the main process first, then the KV gate and the routers."""
        own = [commands.pd_router_launch(self.fleet, c, self._paths) for c in topology.cells if c.prefill == self.node]
        if self.node in gated_nodes(self.fleet):
            own.insert(0, gate.gate_launch(self.fleet, topology, self.node, self._gate_dir))
        if self.node == topology.native_router:
            own.append(commands.vllm_router_launch(self.fleet, topology, self._paths))
        return [self.launch(topology), *own]

    def serve(self, topology: Topology) -> CompiledJob:
        """Start the role's main process and wait until it is healthy."""
        return self.start(self.launch(topology))

    def pd_router(self, cell: Cell) -> CompiledJob:
        """Start the cell's pd_router on this (prefill) node."""
        return self.start(commands.pd_router_launch(self.fleet, cell, self._paths))

    def vllm_router(self, topology: Topology) -> CompiledJob:
        """Start the native pool's router on this node."""
        return self.start(commands.vllm_router_launch(self.fleet, topology, self._paths))

    def gate_program(self) -> CompiledJob:
        """The KV gate's program, on a prefill node."""
        program = gate.program()
        return self._compile("gate", GF_GATE_PROGRAM=gate.program_path(self._gate_dir), GF_GATE_TEXT=program.text)

    def gate(self, topology: Topology) -> CompiledJob:
        """Start the KV gate before this node's vLLM."""
        return self.start(gate.gate_launch(self.fleet, topology, self.node, self._gate_dir))

    def retire_vllm_routers(self, topology: Topology) -> CompiledJob:
        """End the routers of the native pool that came before this node's own, once their streams have ended."""
        return self._compile(
            "retire",
            suffix="vllm-router",
            GF_RUNTIME=self.runtime,
            GF_PREFIX=commands.vllm_router_prefix(self.fleet),
            GF_KEEP=str(commands.vllm_router_port(self.fleet, topology)),
            GF_ADDRESS=topology.addresses[self.node],
            GF_GRACE=str(int(DRAIN_SECONDS)),
        )

    def stop(self, name: str) -> CompiledJob:
        """End a program for good."""
        return self._compile("stop", suffix=name, GF_RUNTIME=self.runtime, GF_SERVICE=name)

    def hello(self, cell: Cell) -> CompiledJob:
        """From the prefill node: does the decode node answer, and do both ends agree?"""
        values = hello_expectations(self.fleet, cell.decode)
        return self._compile("hello", suffix=cell.decode.slug, secrets={}, GF_PEER_IP=cell.decode_ip, **values)

    def prove(self, cell: Cell) -> CompiledJob:
        """One real request through a cell's router, from the prefill node."""
        return self._compile(
            "prove",
            suffix=cell.decode.slug,
            GF_URL=f"http://{cell.prefill_ip}:{cell.port}",
            GF_MODEL=self.fleet.model.served_name,
        )

    def cleanup(self) -> CompiledJob:
        """Stop what this fleet runs on the node; for hosts that are given back, not destroyed."""
        return self._compile("cleanup")

    def start(self, launch: Launch) -> CompiledJob:
        """Run one program and wait for its health."""
        inside = self.runtime is Runtime.INSIDE
        return self._compile(
            "serve",
            suffix=launch.name,
            GF_RUNTIME=self.runtime,
            GF_SERVICE=launch.name,
            GF_RUN_ARGV=shlex.join(self.command_line(launch)),
            GF_RUN_ENV=process_environment(launch, self._image, self.workdir) if inside else "",
            GF_RUN_DIGEST=launch_digest(launch),
            GF_HEALTH_URL=launch.health_url,
            GF_DEADLINE=str(launch.deadline_seconds),
        )

    def command_line(self, launch: Launch) -> tuple[str, ...]:
        """What starts a program on this node: docker's command line, or its own where the rental is its container."""
        if self.runtime is Runtime.INSIDE:
            return launch.argv
        return docker_run(launch, node_labels(self.fleet, self.node))

    def _compile(
        self, playbook: str, *, suffix: str = "", secrets: Mapping[str, str] | None = None, **values: str
    ) -> CompiledJob:
        name = f"{playbook}-{suffix}" if suffix else playbook
        common = {"GF_WORK": self.workdir, "GF_FLEET": self.fleet.name, "GF_NODE": str(self.node)}
        return compile_job(_playbook(playbook), job_name=name, values={**common, **values}, secrets=secrets or {})
