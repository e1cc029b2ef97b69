"""``docker build``: a Dockerfile without a context, step by step, with a cache per step."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from gpufleet.twin import packages
from gpufleet.twin.docker.create import translate
from gpufleet.twin.docker.errors import DockerError
from gpufleet.twin.docker.flags import Command, pairs
from gpufleet.twin.docker.images import Images, digest_of, program_path, split_reference

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpufleet.twin.nodefile import Node

BUILD = Command(
    "buildx build",
    switches="--pull --no-cache --quiet/-q --load",
    values="--file/-f --progress --network --platform --target",
    lists="--tag/-t --build-arg --label",
)
KNOWN = frozenset(
    """
    ADD ARG CMD COPY ENTRYPOINT ENV EXPOSE FROM HEALTHCHECK LABEL RUN SHELL STOPSIGNAL USER VOLUME WORKDIR
    """.split()  # noqa: SIM905
)
SUPPORTED = frozenset(
    """
    ARG CMD ENTRYPOINT ENV FROM LABEL RUN USER WORKDIR
    """.split()  # noqa: SIM905
)


def build(node: Node, options: dict[str, Any], words: list[str]) -> int:
    """Build the Dockerfile on stdin (``-``, or ``-f -``) or in a file.

    Raises:
        DockerError: no such base image, a syntax error, or a step that failed.
    """
    steps = parse(_source(options, words))
    builder = Builder(node, options, [text for _, text in steps])
    for word, text in steps:
        builder.step(word, text)
    image = builder.finish()
    if options["quiet"]:
        print(f"sha256:{image['id']}")
    return 0


def _source(options: dict[str, Any], words: list[str]) -> str:
    BUILD.exactly(words, 1)
    if words[0] == "-" or options["file"] == "-":
        return sys.stdin.read()
    path = Path(words[0]) / "Dockerfile" if not options["file"] else Path(options["file"])
    try:
        return path.read_text()
    except OSError:
        problem = f"failed to read dockerfile: open {path.name}: no such file or directory"
        raise DockerError(f"ERROR: failed to build: failed to solve: {problem}") from None


def parse(text: str) -> list[tuple[str, str]]:
    """Instructions and their arguments, continuation lines joined.

    Raises:
        DockerError: an unknown instruction, or nothing to start from.
    """
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    steps: list[tuple[str, str]] = []
    for line in re.sub(r"\\[ \t]*\n", " ", "\n".join(lines)).splitlines():
        if not line.strip():
            continue
        word, _, rest = line.strip().partition(" ")
        if word.upper() not in KNOWN:
            raise _failed(f"dockerfile parse error on line {_line_of(text, word)}: unknown instruction: {word}")
        if word.upper() not in SUPPORTED:
            raise _failed(
                f'"{rest.split()[0] if rest.split() else word}": not found (a build from stdin has no context)'
            )
        steps.append((word.upper(), rest.strip()))
    if not steps:
        raise _failed("the Dockerfile cannot be empty")
    if next((word for word, _ in steps if word != "ARG"), "") != "FROM":
        raise _failed("no build stage in current context")
    return steps


def _line_of(text: str, word: str) -> int:
    return next((n for n, line in enumerate(text.splitlines(), 1) if line.strip().startswith(word)), 1)


def _failed(message: str) -> DockerError:
    return DockerError(f"ERROR: failed to build: failed to solve: {message}")


class Builder:
    """One build: the image as it grows."""

    def __init__(self, node: Node, options: dict[str, Any], texts: list[str]) -> None:
        self._node = node
        self._options = options
        self._images = Images(node)
        self._image: dict[str, Any] = {}
        self._packages: dict[str, str] = {}
        self._arguments = pairs(options["build-arg"], os.environ)
        self._key = ""
        self._number, self._total = 0, len(texts)

    def step(self, word: str, text: str) -> None:
        """Carry out one instruction."""
        self._number += 1
        self._say(f"#{self._number + 3} [{self._number}/{self._total}] {word} {text}")
        if word == "FROM":
            self._start_from(text)
        elif word == "RUN":
            self._run(text)
        else:
            self._configure(word, text)
        self._key = digest_of(f"{self._key} {word} {text}")

    def finish(self) -> dict[str, Any]:
        """Store the image under its tags."""
        tags = [":".join(split_reference(tag)[:2]) for tag in self._options["tag"]]
        self._image["labels"] |= pairs(self._options["label"], {})
        image = self._image | {
            "id": digest_of(f"built {self._key}"),
            "tags": tags,
            "digests": [],
            "created": time.time(),
        }
        self._images.add(image, self._packages)
        for tag in tags:
            self._say(f"#{self._number + 4} naming to docker.io/{'' if '/' in tag else 'library/'}{tag} done")
        return image

    def _say(self, text: str) -> None:
        if not self._options["quiet"]:
            print(text, file=sys.stderr, flush=True)

    def _start_from(self, text: str) -> None:
        reference = self._expand(text.split(maxsplit=1)[0])
        image = None if self._options["pull"] else self._images.find(reference)
        try:
            image = image or self._images.pull(reference, quiet=True)
        except DockerError as missing:
            detail = "not found" if "manifest" in missing.message else missing.message.partition(": ")[2]
            raise _failed(f"{reference}: failed to resolve source metadata for {reference}: {detail}") from None
        self._image = json.loads(json.dumps(image))
        self._packages = packages.installed(self._images.layer(image))
        self._key = str(image["id"])

    def _run(self, text: str) -> None:
        key = digest_of(f"{self._key} RUN {text} {self._image['env']}")
        cached = self._node.root / "docker" / "layers" / f"{key}.json"
        if cached.exists() and not self._options["no-cache"]:
            self._say(f"#{self._number + 3} CACHED")
            self._packages = json.loads(cached.read_text())
            return
        started = time.monotonic()
        self._packages = self._execute(text)
        fresh = cached.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(self._packages))
        fresh.replace(cached)
        self._say(f"#{self._number + 3} DONE {time.monotonic() - started:.1f}s")

    def _execute(self, text: str) -> dict[str, str]:
        """Run a step in a layer of its own; returns what is installed after it."""
        layer = self._node.root / "docker" / "layers" / f"build-{os.getpid()}"
        shutil.rmtree(layer, ignore_errors=True)
        packages.install(layer, self._packages)
        env = {"HOME": str(layer)} | self._arguments | self._image["env"]
        env["PATH"] = program_path(env["PATH"], self._image["prefix"], layer, self._node.root)
        env |= {"TWIN_ROOT": str(self._node.root), "TWIN_LAYER": str(layer), "TWIN_MOUNTS": "", "TWIN_GPUS": "0"}
        argv = json.loads(text) if text.startswith("[") else ["/bin/sh", "-c", translate(text, self._image, layer)]
        code = subprocess.run(
            argv, env=env, cwd=layer, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False
        ).returncode
        if code:
            words = " ".join(json.loads(text)) if text.startswith("[") else f"/bin/sh -c {text}"
            shutil.rmtree(layer, ignore_errors=True)
            raise _failed(f'process "{words}" did not complete successfully: exit code: {code}')
        after = packages.installed(layer)
        shutil.rmtree(layer, ignore_errors=True)
        return after

    def _configure(self, word: str, text: str) -> None:
        if word == "ARG":
            name, equals, value = self._expand(text).partition("=")
            self._arguments = ({name: value} if equals else {}) | self._arguments
        elif word == "ENV":
            self._image["env"] |= self._assignments(text)
        elif word == "LABEL":
            self._image["labels"] |= self._assignments(text)
        elif word in ("ENTRYPOINT", "CMD"):
            self._image[word.lower()] = json.loads(text) if text.startswith("[") else ["/bin/sh", "-c", text]
            if word == "ENTRYPOINT":
                self._image["cmd"] = []
        else:
            self._image[word.lower()] = self._expand(text)

    def _assignments(self, text: str) -> dict[str, str]:
        if "=" not in text.split(maxsplit=1)[0]:
            name, _, value = text.partition(" ")
            return {name: self._expand(value.strip())}
        return {name: self._expand(value) for name, _, value in (word.partition("=") for word in shlex.split(text))}

    def _expand(self, text: str) -> str:
        known = self._arguments | self._image.get("env", {})
        return re.sub(r"\$(\w+)|\$\{(\w+)\}", lambda found: known.get(found[1] or found[2], ""), text)
