"""Roles in rentals that are containers of the role's image: no docker, no init system, maybe no SSH server. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import cache
from importlib import resources

from gpufleet.domain.market import WORKDIR
from gpufleet.domain.nodes import NodeName
from gpufleet.serving.images import RoleImage, role_image
from gpufleet.serving.launch import Launch
from gpufleet.spec.model import Fleet

MAX_START_CHARACTERS = 4096
"""The shortest limit among providers (Vast, of arguments and script together)."""


def image_of(fleet: Fleet, node: NodeName) -> str:
    """What a rental is started from: the role's published image; what that lacks is installed once it runs."""
    return role_image(fleet, fleet.role_of(node.pool)).base


def swallows_command(image: str) -> bool:
    """Whether an image's own entrypoint takes the command of whoever starts it for arguments of its own.

    vLLM's is ``vllm serve``: where a provider cannot replace it, no SSH server can be started in it.
    """
    return image.removeprefix("docker.io/").startswith("vllm/vllm-openai")


def start_of(public_key: str) -> str:
    """The container's command, for ``sh -c``: an SSH server that takes this key and nothing else.

    Safe where the provider brings an SSH server of its own: then it only adds the key.
    """
    return f"key={shlex.quote(public_key.strip())}\nwork=${{GF_WORK:-{WORKDIR}}}\n{_start_script()}"


def image_environment(image: RoleImage, workdir: str) -> str:
    """Shell text that gives a login what the image's own start would have given: a login passes by both.

    ``image.env`` is what `start_of` kept of the container's environment.
    """
    kept = shlex.quote(f"{workdir}/image.env")
    lines = [f"if [ -r {kept} ]; then . {kept}; fi"]
    if image.python_dir:
        folder = shlex.quote(image.python_dir)
        lines.append(f"if [ -d {folder} ]; then PATH={folder}:$PATH; fi")
    return "\n".join([*lines, "export PATH", ""])


def process_environment(launch: Launch, image: RoleImage, workdir: str) -> str:
    """The 0600 file that a supervised program's environment comes from."""
    return image_environment(image, workdir) + _exports(launch.env)


def _exports(values: Mapping[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())


@cache
def _start_script() -> str:
    """Without the comments, which need not travel."""
    text = resources.files("gpufleet.serving").joinpath("inside-start.sh").read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if line and not line.lstrip().startswith("#")) + "\n"
