"""``docker run`` and ``docker create``: from flags to a container's configuration, refusing what docker refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from pathlib import Path

from gpufleet.twin import packages
from gpufleet.twin.docker.errors import DockerError, daemon, refused_run
from gpufleet.twin.docker.flags import Command, pairs
from gpufleet.twin.docker.images import ENTRYPOINT, Images, program_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpufleet.twin.docker.store import Container, Containers
    from gpufleet.twin.nodefile import Node

RUN = Command(
    "run",
    switches="--detach/-d --rm --privileged --init --interactive/-i --tty/-t --no-healthcheck --quiet/-q",
    values="--name --gpus --ipc --network/--net --shm-size --restart --entrypoint --log-driver --pid --stop-timeout "
    "--workdir/-w --user/-u --memory/-m --cpus --hostname/-h --pull --runtime --stop-signal --uts --cpuset-cpus "
    "--platform --cgroupns --oom-score-adj --pids-limit",
    lists="--device --cap-add --cap-drop --ulimit --volume/-v --mount --env/-e --env-file --label/-l --log-opt "
    "--security-opt --group-add --add-host --tmpfs",
    own_arguments=True,
)
CAPABILITIES = {"IPC_LOCK", "SYS_ADMIN", "SYS_NICE", "SYS_PTRACE", "NET_ADMIN", "NET_RAW", "SYS_RESOURCE", "ALL"}
RESTARTS = re.compile(r"no|always|unless-stopped|on-failure(:\d+)?")
SIZE = re.compile(r"\d+(\.\d+)?\s*[bkmgtBKMGT]?[bB]?")
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")


def make_container(node: Node, containers: Containers, options: dict[str, Any], words: list[str]) -> Container:
    """Check everything, then write the container down; it does not run yet.

    Raises:
        DockerError: refused, with docker's words and exit status 125 or 127.
    """
    _check(node, options)
    image = _image(node, options, words[0])
    identifier = os.urandom(32).hex()
    mounts, read_only = _mounts(options)
    command = _command(image, options, words[1:])
    env = dict(image["env"]) | _environment(options)
    config = {
        "name": options["name"] or f"twin_{identifier[:8]}",
        "image": words[0],
        "image_id": image["id"],
        "command": command,
        "entrypoint": image["entrypoint"] if not options["entrypoint"] else [options["entrypoint"]],
        "labels": image["labels"]
        | pairs(options["label"], {})
        | {label: "" for label in options["label"] if "=" not in label},
        "user_env": env,
        "mounts": mounts,
        "read_only": read_only,
        "restart": options["restart"] or "no",
        "remove": options["rm"],
        "interactive": options["interactive"],
        "stop_timeout": int(options["stop-timeout"] or 10),
        "network": options["network"] or "bridge",
        "ipc": options["ipc"] or "private",
        "gpus": _gpus(node, options["gpus"]),
        "workdir": options["workdir"] or image["workdir"],
        "created": time.time(),
    }
    with containers.locked():
        try:
            container = containers.create(identifier, config)
        except DockerError as conflict:
            raise refused_run(conflict.message) from None
    _fill(node, container, image)
    return container


def _check(node: Node, options: dict[str, Any]) -> None:
    if options["rm"] and options["restart"] not in ("", "no"):
        raise refused_run("conflicting options: cannot specify both --restart and --rm")
    if options["restart"] and not RESTARTS.fullmatch(options["restart"]):
        raise refused_run(daemon(f"invalid restart policy: unknown policy '{options['restart']}'").message)
    if options["name"] and not NAME.fullmatch(options["name"]):
        allowed = "[a-zA-Z0-9][a-zA-Z0-9_.-]"
        raise refused_run(daemon(f"Invalid container name ({options['name']}), only {allowed} are allowed").message)
    if options["shm-size"] and not SIZE.fullmatch(options["shm-size"]):
        raise RUN.misuse(
            f'invalid argument "{options["shm-size"]}" for "--shm-size" flag: invalid size: \'{options["shm-size"]}\''
        )
    if options["tty"] and options["interactive"] and not os.isatty(0):
        raise DockerError("the input device is not a TTY", 1)
    for capability in options["cap-add"]:
        if capability.upper().removeprefix("CAP_") not in CAPABILITIES:
            raise refused_run(daemon(f'invalid CapAdd: unknown capability: "CAP_{capability.upper()}"').message)
    for limit in options["ulimit"]:
        if not re.fullmatch(r"(memlock|nofile|stack|nproc|core)=-?\d+(:-?\d+)?", limit):
            raise RUN.misuse(f'invalid argument "{limit}" for "--ulimit" flag: invalid ulimit argument: {limit}')
    for device in options["device"]:
        _check_device(node, device.partition(":")[0])


def _check_device(node: Node, path: str) -> None:
    there = bool(node.rdma["devices"]) if path.startswith("/dev/infiniband") else Path(path).exists()
    if not there:
        problem = f'error gathering device information while adding custom device "{path}": no such file or directory'
        raise refused_run(daemon(problem).message)


def _gpus(node: Node, wanted: str) -> int:
    """How many GPUs the container sees."""
    if not wanted:
        return 0
    if node.fault("no-gpu-runtime") is not None or node.fault("no-driver") is not None or not node.gpus_visible:
        raise refused_run(daemon('could not select device driver "" with capabilities: [[gpu]]').message)
    text = wanted.strip("\"'")
    if text == "all":
        return node.gpus_visible
    if text.isdecimal():
        return min(int(text), node.gpus_visible)
    if text.startswith("device="):
        return len(text.removeprefix("device=").split(","))
    raise RUN.misuse(f"invalid argument \"{wanted}\" for \"--gpus\" flag: unexpected key '{text}' in '{text}'")


def _image(node: Node, options: dict[str, Any], reference: str) -> dict[str, Any]:
    images = Images(node)
    try:
        image = images.find(reference)
        if image is None or options["pull"] == "always":
            if options["pull"] == "never":
                raise daemon(f"No such image: {reference}")
            print(f"Unable to find image '{reference}' locally", file=sys.stderr, flush=True)
            image = images.pull(reference, quiet=True)
    except DockerError as missing:
        raise refused_run(missing.message) from None
    return image


def _mounts(options: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Mounted paths, and those of them that cannot be written to. Missing ones of ``-v`` are made, as docker does."""
    every: list[str] = []
    read_only: list[str] = []
    for text in options["volume"]:
        source, target, mode = [*text.split(":"), "", ""][:3]
        target = target or source
        if not re.fullmatch(r"|(ro|rw|z|Z|shared|slave|rshared|rslave|private|rprivate)(,.*)?", mode):
            raise refused_run(f"invalid spec: {text}: invalid mode: {mode}")
        Path(_same(source, target)).mkdir(parents=True, exist_ok=True)
        every.append(source)
        read_only += [source] * ("ro" in mode.split(","))
    for text in options["mount"]:
        entries = {key: value for key, _, value in (entry.partition("=") for entry in text.split(","))}
        source = entries.get("source", entries.get("src", ""))
        target = entries.get("target", entries.get("destination", entries.get("dst", "")))
        if entries.get("type", "volume") != "bind" or not Path(_same(source, target)).exists():
            problem = f'invalid mount config for type "bind": bind source path does not exist: {source}'
            raise refused_run(daemon(problem).message)
        every.append(source)
        read_only += [source] * bool({"readonly", "ro"} & entries.keys())
    return every, read_only


def _same(source: str, target: str) -> str:
    """The twin has no file system of its own per container."""
    if not source.startswith("/"):
        problem = f"create {source}: the twin has no named volumes; use the absolute path of a directory"
        raise refused_run(daemon(problem).message)
    if source != target:
        raise refused_run(daemon(f"the twin mounts a path only at the same path: {source} is not {target}").message)
    return source


def _environment(options: dict[str, Any]) -> dict[str, str]:
    env: dict[str, str] = {}
    for file in options["env-file"]:
        try:
            lines = Path(file).read_text().splitlines()
        except OSError as problem:
            raise refused_run(f"open {file}: {(problem.strerror or 'error').lower()}") from None
        entries = [line for line in (text.lstrip() for text in lines) if line and not line.startswith("#")]
        for entry in entries:
            if re.search(r"\s", entry.partition("=")[0]):
                raise refused_run(
                    f"poorly formatted environment: variable '{entry.partition('=')[0]}' contains whitespaces"
                )
        env |= pairs(entries, os.environ)
    return env | pairs(options["env"], os.environ)


def _command(image: dict[str, Any], options: dict[str, Any], words: list[str]) -> list[str]:
    """Entrypoint and arguments; an entrypoint given by flag drops the image's default arguments."""
    if options["entrypoint"]:
        return [options["entrypoint"], *words]
    argv = [*image["entrypoint"], *(words or image["cmd"])]
    if not argv:
        raise refused_run(daemon("no command specified").message)
    return argv


def _fill(node: Node, container: Container, image: dict[str, Any]) -> None:
    """Give the container its layer: programs of the image, then what ``pip`` adds while it runs."""
    images = Images(node)
    layer = container.folder / "layer"
    packages.install(layer, packages.installed(images.layer(image)))
    if container.config["gpus"]:
        packages.add_program(layer, "nvidia-smi")
    (layer / "entrypoint.sh").write_text(f'#!/bin/sh\nPATH="{layer}/bin:$PATH"\nexec "$@"\n')
    (layer / "entrypoint.sh").chmod(0o755)
    config = container.config
    config["env"] = container_environment(node, container, image)
    workdir = Path(config["workdir"] or "/")
    config["cwd"] = str(workdir if workdir.exists() else layer)
    config["argv"] = [translate(word, image, layer) for word in config["command"]]
    config["program"] = _program(config)
    fresh = container.folder / ".config"
    fresh.write_text(json.dumps(config))
    fresh.replace(container.folder / "config.json")


def container_environment(node: Node, container: Container, image: dict[str, Any]) -> dict[str, str]:
    """What a process inside sees: the image's and the user's variables, and what stand-ins need to know."""
    config, layer = container.config, container.folder / "layer"
    env: dict[str, str] = {"HOME": str(layer), "HOSTNAME": container.id[:12]} | config["user_env"]
    env["PATH"] = program_path(env["PATH"], image["prefix"], layer, node.root)
    env |= {
        "TWIN_ROOT": str(node.root),
        "TWIN_CONTAINER": container.id,
        "TWIN_LAYER": str(layer),
        "TWIN_GPUS": str(config["gpus"]),
        "TWIN_MOUNTS": ":".join(config["mounts"]),
        "TWIN_MOUNTS_RO": ":".join(config["read_only"]),
    }
    return env


def translate(text: str, image: dict[str, Any], layer: Path) -> str:
    """Where a path of the image's own Python is on this machine."""
    if text == ENTRYPOINT:
        return str(layer / "entrypoint.sh")
    return re.sub(rf"(?<![\w/]){re.escape(image['prefix'])}(?=/\w)", str(layer / "bin"), text)


def _program(config: dict[str, Any]) -> str:
    path = config["env"]["PATH"]
    if config["argv"][0].endswith("/layer/entrypoint.sh"):
        return str(config["argv"][0])
    return shutil.which(config["argv"][0], path=path) or ""
