"""A node that is itself a container: its programs are those of an image, and there is no docker.

``node.json`` names the ``image``, and the ``start`` text that whoever rented it wants to be run in it. As at providers
that bring an SSH server of their own, a login sees nothing of the image's environment.
"""

from __future__ import annotations

import os
import subprocess

from gpufleet.twin import packages
from gpufleet.twin.docker.images import Images, program_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpufleet.twin.nodefile import Node


def start_container(node: Node) -> None:
    """Unpack the image, and run the start text with the image's environment. Does nothing on a node that is a machine.

    Raises:
        DockerError: there is no such image.
    """
    if not node.facts.get("image"):
        return
    os.environ["TWIN_ROOT"] = str(node.root)
    images = Images(node)
    image = images.pull(node.facts["image"], quiet=True)
    layer = node.root / "inside"
    packages.install(layer, packages.installed(images.layer(image)))
    if node.gpus_visible:
        packages.add_program(layer, "nvidia-smi")
    own_python = program_path(f"{image['prefix']}:{image['env']['PATH']}", image["prefix"], layer, node.root)
    environment = {
        **{name: os.environ[name] for name in ("LANG",) if name in os.environ},
        **image["env"],
        **container_variables(node),
        "PATH": f"{own_python}:{_login_path(node)}",
        "HOME": str(node.root / "home"),
        "HF_TOKEN": "of-the-image",
        "GF_WORK": str(node.root / "work"),
        "GF_SSHD_PORT": str(node.facts["ssh_port"]),
    }
    subprocess.run(["/bin/sh", "-c", node.facts.get("start") or ":"], env=environment, cwd="/", check=True)


def container_variables(node: Node) -> dict[str, str]:
    """What the stand-ins need to know to behave as inside; empty on a node that is a machine."""
    if not node.facts.get("image"):
        return {}
    return {
        "PATH": _login_path(node),
        "TWIN_ROOT": str(node.root),
        "TWIN_LAYER": str(node.root / "inside"),
        "TWIN_GPUS": str(node.gpus_visible),
    }


def _login_path(node: Node) -> str:
    """Nothing of this machine's own from /usr/local, such as a real docker."""
    return f"{node.root}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
