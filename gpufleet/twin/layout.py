"""Make a directory into the file system of a twin node: ``python -m gpufleet.twin.layout ROOT``.

``ROOT/bin`` goes in front of a PATH (by the twin's SSH server, or by a real sshd's ``SetEnv``).
"""

from __future__ import annotations

import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HOST_TOOLS = {name: name for name in ("docker", "nvidia-smi", "ibstat", "ibv_devinfo", "free", "df", "hf", "pip")} | {
    "huggingface-cli": "hf",
    "pip3": "pip",
}
HOST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
IMAGE_TOOLS = ("python", "pip", "hf", "vllm", "vllm-router", "nvidia-smi")
IN_EVERY_IMAGE = tuple(
    """
    sh bash env cat cp mv rm mkdir rmdir ls ln chmod touch test [ true false echo printf sleep date head tail grep
    sed awk tr cut sort uniq wc find xargs tee basename dirname id uname hostname kill ps stat du timeout setsid
    flock sha256sum md5sum mktemp readlink realpath seq sync expr nohup nproc od base64 curl tar gzip
    """.split()  # noqa: SIM905
)
"""What a container sees of the machine: no Python, no docker, nothing of a developer's own."""


def prepare_root(root: Path, spec: dict[str, Any]) -> None:
    """Lay out ``root``; safe to repeat.

    Args:
        root: the node's directory; absolute.
        spec: the content of its ``node.json``.
    """
    import shutil  # the docker stand-in takes a name from here, and every millisecond of its start counts

    for folder in (
        "bin",
        "home",
        "work",
        "docker/bin",
        "docker/containers",
        "docker/images",
        "docker/layers",
        "docker/tools",
    ):
        (root / folder).mkdir(parents=True, exist_ok=True)
    absent = {"nvidia-smi": spec.get("gpu_count") == 0, "docker": bool(spec.get("image"))}
    for name, tool in HOST_TOOLS.items():
        if absent.get(name):
            continue
        write_program(root / "bin" / name, wrapper(root, tool))
    write_program(root / "bin" / "python3", _host_python(root))
    for name in IMAGE_TOOLS:
        write_program(root / "docker" / "tools" / name, wrapper(root, name))
    for name in IN_EVERY_IMAGE:
        _link(root / "docker" / "bin" / name, shutil.which(name, path=HOST_PATH))


def wrapper(root: Path, tool: str, *, before: str = "") -> str:
    """Text of a script that starts a stand-in; ``before`` is shell text that runs first."""
    import shlex

    launcher = Path(__file__).with_name("launcher.py")
    command = f"exec {shlex.quote(sys.executable)} -I -S {shlex.quote(str(launcher))} {tool}"
    return f'#!/bin/sh\n{before}export TWIN_ROOT={shlex.quote(str(root))}\n{command} "$@"\n'


def write_program(path: Path, text: str) -> None:
    """Write an executable file, unless it is there with the same text."""
    try:
        if path.read_text() == text:
            return
    except FileNotFoundError:
        pass
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text)
    fresh.chmod(0o755)
    fresh.replace(path)


def _host_python(root: Path) -> str:
    import shlex

    pip = shlex.quote(str(root / "bin" / "pip"))
    python = shlex.quote(getattr(sys, "_base_executable", sys.executable))
    return f'#!/bin/sh\nif [ "$1 $2" = "-m pip" ]; then shift 2; exec {pip} "$@"; fi\nexec {python} "$@"\n'


def _link(link: Path, target: str | None) -> None:
    if target and not link.is_symlink():
        link.symlink_to(target)


def main(argv: list[str]) -> int:
    """Prepare the root named on the command line from the ``node.json`` in it."""
    from gpufleet.twin import nodefile

    if len(argv) != 1:
        print("usage: python -m gpufleet.twin.layout ROOT", file=sys.stderr)
        return 2
    root = Path(argv[0]).resolve()
    prepare_root(root, nodefile.load(root).facts)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
