"""Stand-in for the ``docker`` command and its daemon. What it knows it does as docker does; what not, it refuses."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time

from gpufleet.twin import nodefile, packages
from gpufleet.twin.docker import lifecycle, show, supervisor
from gpufleet.twin.docker.errors import DockerError, daemon
from gpufleet.twin.docker.flags import Command, pairs
from gpufleet.twin.docker.images import Images
from gpufleet.twin.docker.store import Container, Containers
from gpufleet.twin.docker.template import render

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

VERSION = "28.5.1"
PS = Command(
    "ps", switches="--all/-a --quiet/-q --no-trunc --latest/-l", values="--format --last/-n", lists="--filter/-f"
)
IMAGES = Command("images", switches="--all/-a --quiet/-q --no-trunc --digests", values="--format", lists="--filter/-f")
INSPECT = Command("inspect", switches="--size/-s", values="--format/-f --type")
LOGS = Command("logs", switches="--follow/-f --timestamps/-t --details", values="--tail/-n --since")
EXEC = Command(
    "exec", switches="--interactive/-i --tty/-t --detach/-d --privileged", values="--workdir/-w --user/-u",
    lists="--env/-e --env-file", own_arguments=True,
)  # fmt: skip
STATUS_COLUMNS = {"ID": "CONTAINER ID", "Image": "IMAGE", "Command": "COMMAND", "RunningFor": "CREATED"} | {
    "Status": "STATUS", "Ports": "PORTS", "Names": "NAMES",
}  # fmt: skip
IMAGE_COLUMNS = {"Repository": "REPOSITORY", "Tag": "TAG", "ID": "IMAGE ID", "CreatedSince": "CREATED", "Size": "SIZE"}


def main(argv: list[str]) -> int:
    """Run one docker command; returns its exit status."""
    try:
        return Docker(nodefile.load()).run(argv)
    except DockerError as problem:
        print(problem.message, file=sys.stderr)
        return problem.status


class Docker:
    """The commands, each a method that gets its own words."""

    def __init__(self, node: nodefile.Node) -> None:
        self._node = node
        self._images = Images(node)
        self._containers = Containers(node)

    def run(self, argv: list[str]) -> int:
        """Find the command and run it."""
        if argv[:1] in (["--version"], ["-v"]):
            print(f"Docker version {VERSION}, build e180ab8")
            return 0
        if argv[:1] == ["buildx"] and argv[1:2] == ["version"]:
            print("github.com/docker/buildx v0.29.1 a32761aeb3debd39be1eca514af3693af0db334b")
            return 0
        if argv[:1] in (["container"], ["image"], ["buildx"], ["system"]):
            return self._run_in_group(argv)
        return self._dispatch(argv[0] if argv else "", argv[1:])

    def _run_in_group(self, argv: list[str]) -> int:
        group, word = argv[0], argv[1] if len(argv) > 1 else ""
        renamed = {
            ("container", "ls"): "ps",
            ("container", "list"): "ps",
            ("image", "ls"): "images",
            ("image", "list"): "images",
        }
        renamed |= {
            ("image", "rm"): "rmi",
            ("image", "inspect"): "image-inspect",
            ("container", "inspect"): "container-inspect",
        }
        renamed |= {("buildx", "build"): "build", ("system", "info"): "info"}
        return self._dispatch(renamed.get((group, word), word), argv[2:])

    def _dispatch(self, word: str, argv: list[str]) -> int:
        if self._node.fault("docker-down") is not None:
            message = (
                "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
            )
            raise DockerError(message)
        command: Callable[[list[str]], int] | None = getattr(self, f"do_{word.replace('-', '_')}", None)
        if command is None or not word:
            raise DockerError(f"docker: unknown command: docker {word}\n\nRun 'docker --help' for more information")
        return command(argv)

    def do_version(self, argv: list[str]) -> int:
        options, _ = Command("version", values="--format/-f").parse(argv)
        part = {"Version": VERSION, "ApiVersion": "1.51", "Os": "linux", "Arch": "amd64"}
        if options["format"]:
            print(
                render(
                    options["format"],
                    {"Client": part, "Server": part | {"Platform": {"Name": "Docker Engine - Community"}}},
                )
            )
        else:
            print(f"Client: Docker Engine - Community\n Version:           {VERSION}\n")
            print(f"Server: Docker Engine - Community\n Engine:\n  Version:          {VERSION}")
        return 0

    def do_info(self, argv: list[str]) -> int:
        options, _ = Command("info", values="--format/-f").parse(argv)
        known = self._containers.all()
        facts = {
            "ServerVersion": VERSION,
            "Containers": len(known),
            "ContainersRunning": sum(container.running for container in known),
            "Images": len(self._images.all()),
            "Driver": "overlay2",
            "LoggingDriver": "json-file",
            "DockerRootDir": "/var/lib/docker",
            "Runtimes": {"io.containerd.runc.v2": {"path": "runc"}, "runc": {"path": "runc"}},
            "DefaultRuntime": "runc",
            "OperatingSystem": "Ubuntu 24.04.3 LTS",
            "MemTotal": int(float(self._node.facts["ram_gb"]) * (1 << 30)),
            "NCPU": os.cpu_count(),
        }
        if self._node.fault("no-gpu-runtime") is None:
            facts["Runtimes"] |= {"nvidia": {"path": "nvidia-container-runtime"}}  # type: ignore[operator]
        if options["format"]:
            print(json.dumps(facts) if options["format"] == "json" else render(options["format"], facts))
        else:
            print(f"Server:\n Containers: {facts['Containers']}\n Server Version: {VERSION}\n Storage Driver: overlay2")
            print(f" Runtimes: {' '.join(facts['Runtimes'])}")  # type: ignore[arg-type]
        return 0

    def do_pull(self, argv: list[str]) -> int:
        command = Command("pull", switches="--quiet/-q", values="--platform")
        options, words = command.parse(argv)
        command.exactly(words, 1)
        image = self._images.pull(words[0], quiet=options["quiet"])
        print(words[0] if options["quiet"] else f"docker.io/{image['tags'][0]}")
        return 0

    def do_images(self, argv: list[str]) -> int:
        options, words = IMAGES.parse(argv)
        rows = [row for image in self._images.all() for row in _image_rows(image, whole=options["no-trunc"])]
        if words:
            rows = [row for row in rows if words[0] in (row["Repository"], f"{row['Repository']}:{row['Tag']}")]
        for text in options["filter"]:
            key, _, value = text.partition("=")
            if key == "reference":
                rows = [row for row in rows if value in (row["Repository"], f"{row['Repository']}:{row['Tag']}")]
            elif key == "label":
                rows = [row for row in rows if value in row["Labels"]]
            else:
                raise daemon(f"invalid filter '{key}'")
        _print_rows(rows, IMAGE_COLUMNS, options)
        return 0

    def do_image_inspect(self, argv: list[str]) -> int:
        options, words = INSPECT.parse(argv)
        INSPECT.at_least(words, 1)
        return _print_found(words, self._image_document, options["format"])

    def do_container_inspect(self, argv: list[str]) -> int:
        options, words = INSPECT.parse(argv)
        INSPECT.at_least(words, 1)
        return _print_found(words, self._container_document, options["format"])

    def do_inspect(self, argv: list[str]) -> int:
        options, words = INSPECT.parse(argv)
        INSPECT.at_least(words, 1)
        kinds = {"image": self._image_document, "container": self._container_document, "": self._document}
        return _print_found(words, kinds[options["type"]], options["format"])

    def do_build(self, argv: list[str]) -> int:
        from gpufleet.twin.docker.build import BUILD, build

        options, words = BUILD.parse(argv)
        return build(self._node, options, words)

    def do_run(self, argv: list[str]) -> int:
        from gpufleet.twin.docker.create import RUN, make_container

        options, words = RUN.parse(argv)
        RUN.at_least(words, 1)
        container = make_container(self._node, self._containers, options, words)
        if options["detach"]:
            lifecycle.start(container)
            print(container.id)
            return 0
        return lifecycle.attend(*lifecycle.start(container, attached=True))

    def do_create(self, argv: list[str]) -> int:
        from gpufleet.twin.docker.create import RUN, make_container

        options, words = RUN.parse(argv)
        RUN.at_least(words, 1)
        print(make_container(self._node, self._containers, options, words).id)
        return 0

    def do_start(self, argv: list[str]) -> int:
        _, words = Command("start").parse(argv)
        return self._each(words, lambda c: lifecycle.start_again(self._containers, c))

    def do_restart(self, argv: list[str]) -> int:
        options, words = Command("restart", values="--time/--timeout/-t").parse(argv)
        return self._each(words, lambda container: lifecycle.restart(self._containers, container, options["time"]))

    def do_stop(self, argv: list[str]) -> int:
        options, words = Command("stop", values="--time/--timeout/-t --signal/-s").parse(argv)
        return self._each(words, lambda container: lifecycle.stop(container, options["time"]))

    def do_kill(self, argv: list[str]) -> int:
        options, words = Command("kill", values="--signal/-s").parse(argv)
        return self._each(words, lambda container: lifecycle.kill(container, options["signal"] or "KILL"))

    def do_rm(self, argv: list[str]) -> int:
        options, words = Command("rm", switches="--force/-f --volumes/-v").parse(argv)
        return self._each(
            words, lambda c: lifecycle.remove(c, force=options["force"]), missing_is_fine=options["force"]
        )

    def do_wait(self, argv: list[str]) -> int:
        _, words = Command("wait").parse(argv)
        for word in words:
            container = self._containers.get(word)
            lifecycle.wait_for_end(container)
            print(container.state()["exit_code"])
        return 0

    def do_logs(self, argv: list[str]) -> int:
        options, words = LOGS.parse(argv)
        LOGS.exactly(words, 1)
        with contextlib.suppress(KeyboardInterrupt):
            show.print_logs(self._containers, self._containers.get(words[0]), options)
        return 0

    def do_ps(self, argv: list[str]) -> int:
        options, _ = PS.parse(argv)
        everything = options["all"] or any(text.startswith(("status=", "exited=")) for text in options["filter"])
        found = [c for c in self._containers.all() if (everything or c.running) and show.matches(c, options["filter"])]
        found = found[: int(options["last"])] if options["last"] else found
        rows = [show.container_row(container, whole=options["no-trunc"]) for container in found]
        if options["quiet"]:
            print("".join(f"{row['ID']}\n" for row, _ in rows), end="")
        elif options["format"] and not options["format"].startswith("table"):
            for row, functions in rows:
                print(json.dumps(row) if options["format"] == "json" else render(options["format"], row, functions))
        else:
            show.print_table([row for row, _ in rows], STATUS_COLUMNS)
        return 0

    def do_exec(self, argv: list[str]) -> int:
        options, words = EXEC.parse(argv)
        EXEC.at_least(words, 2)
        container = self._containers.get(words[0])
        if container.state()["status"] != "running":
            raise daemon(f"container {container.id} is not running")
        env = container.config["env"] | pairs(options["env"], os.environ)
        program = shutil.which(words[1], path=env["PATH"])
        if program is None:
            detail = f'exec: "{words[1]}": executable file not found in $PATH'
            raise DockerError(
                f"OCI runtime exec failed: exec failed: unable to start container process: {detail}: unknown", 127
            )
        if options["detach"]:
            if os.fork():
                return 0
            supervisor.leave_terminal()
        os.chdir(options["workdir"] or container.config["cwd"])
        if not options["interactive"]:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execve(program, words[1:], env)  # noqa: S606

    def do_commit(self, argv: list[str]) -> int:
        command = Command("commit", values="--author/-a --message/-m", lists="--change/-c", switches="--pause/-p")
        _, words = command.parse(argv)
        command.exactly(words, 2)
        container = self._containers.get(words[0])
        base = self._images.get(f"sha256:{container.config['image_id']}")
        image = base | {"id": os.urandom(32).hex(), "tags": [], "digests": [], "created": time.time()}
        self._images.add(image, packages.installed(container.folder / "layer"))
        self._images.tag(image, words[1])
        print(f"sha256:{image['id']}")
        return 0

    def do_tag(self, argv: list[str]) -> int:
        command = Command("tag")
        _, words = command.parse(argv)
        command.exactly(words, 2)
        self._images.tag(self._images.get(words[0]), words[1])
        return 0

    def do_rmi(self, argv: list[str]) -> int:
        options, words = Command("rmi", switches="--force/-f --no-prune").parse(argv)
        for word in words:
            image = self._images.get(word)
            user = next((c for c in self._containers.all() if c.config["image_id"] == image["id"]), None)
            if user is not None and not options["force"]:
                raise daemon(
                    f'conflict: unable to remove repository reference "{word}" (must force) - container {user.id[:12]} '
                    f"is using its referenced image {image['id'][:12]}"
                )
            self._images.remove(image)
            print(f"Untagged: {word}\nDeleted: sha256:{image['id']}")
        return 0

    def _image_document(self, word: str) -> dict[str, Any]:
        return show.inspect_image(self._images.get(word))

    def _container_document(self, word: str) -> dict[str, Any]:
        return show.inspect_container(self._containers.get(word))

    def _document(self, word: str) -> dict[str, Any]:
        container = self._containers.find(word)
        if container is not None:
            return show.inspect_container(container)
        image = self._images.find(word)
        if image is None:
            raise DockerError(f"error: no such object: {word}")
        return show.inspect_image(image)

    def _each(self, words: list[str], action: Callable[[Container], None], *, missing_is_fine: bool = False) -> int:
        if not words:
            raise DockerError("docker: requires at least 1 argument")
        status = 0
        for word in words:
            try:
                action(self._containers.get(word))
                print(word, flush=True)
            except DockerError as problem:
                print(problem.message, file=sys.stderr)
                status = status if missing_is_fine and "No such container" in problem.message else 1
        return status


def _image_rows(image: dict[str, Any], *, whole: bool) -> list[dict[str, Any]]:
    common = {
        "ID": f"sha256:{image['id']}" if whole else image["id"][:12],
        "CreatedSince": f"{show.ago(time.time() - image['created'])} ago",
        "CreatedAt": show.rfc3339(image["created"]),
        "Size": f"{image['size'] / 1e9:.1f}GB",
        "Digest": image["digests"][0].partition("@")[2] if image["digests"] else "<none>",
        "Labels": [f"{key}={value}" for key, value in image["labels"].items()] + list(image["labels"]),
    }
    names = [tag.rpartition(":") for tag in image["tags"]] or [("<none>", ":", "<none>")]
    return [common | {"Repository": name, "Tag": tag} for name, _, tag in names]


def _print_rows(rows: list[dict[str, Any]], columns: dict[str, str], options: dict[str, Any]) -> None:
    if options["quiet"]:
        print("".join(f"{identifier}\n" for identifier in dict.fromkeys(row["ID"] for row in rows)), end="")
    elif options["format"]:
        for row in rows:
            print(json.dumps(row) if options["format"] == "json" else render(options["format"], row))
    else:
        show.print_table(rows, columns)


def _print_found(words: list[str], find: Callable[[str], dict[str, Any]], shape: str) -> int:
    """Print what is found; complain about the rest."""
    documents, problems = [], []
    for word in words:
        try:
            documents.append(find(word))
        except DockerError as problem:
            problems.append(problem.message)
    show.print_documents(documents, shape)
    for message in problems:
        print(message, file=sys.stderr)
    return 1 if problems else 0
