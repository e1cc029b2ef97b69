"""Stand-in for an image's ``python``: dispatches ``-m`` of the serving programs, else runs the real interpreter.

The real interpreter sees the packages of the image as empty modules, so that ``import tilert`` tells the truth.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

from gpufleet.twin import packages

HTTP = ("fastapi", "uvicorn", "httpx", "requests", "pydantic")
MODULES: dict[str, tuple[str, tuple[str, ...]]] = {
    "tilert.pd_vllm.decode_server": ("decode_server", ("tilert", "torch", *HTTP)),
    "tilert.pd_vllm.pd_router": ("pd_router", ("tilert", "torch", *HTTP)),
    "tilert.models.preprocess.weight_converter": ("tools.weight_converter", ("tilert", "torch", "safetensors")),
    "vllm.entrypoints.cli.main": ("tools.vllm", ("vllm",)),
    "vllm.entrypoints.openai.api_server": ("vllm_server", ("vllm",)),
    "vllm_router.launch_router": ("tools.vllm_router", ("vllm-router",)),
    "pip": ("tools.pip", ("pip",)),
}
HARMLESS = ("-u", "-B", "-E", "-s", "-O", "-P")
TRANSFORMERS = 5
"""GLM-5's tokenizer class came with this major version."""


def main(argv: list[str]) -> int:
    """Run ``python ARGS`` as the image would."""
    first = next((i for i, word in enumerate(argv) if word not in HARMLESS), len(argv))
    if argv[first : first + 1] == ["-m"] and len(argv) > first + 1:
        return run_module(argv[first + 1], argv[first + 2 :])
    if argv in (["--version"], ["-V"]):
        print("Python 3.12.11")
        return 0
    return _real(argv)


def run_module(name: str, argv: list[str]) -> int:
    """Run ``python -m name`` if the image has what it imports."""
    if name not in MODULES:
        return _real(["-m", name, *argv])
    module, needs = MODULES[name]
    known = packages.installed()
    os.environ["TWIN_PACKAGES"] = ",".join(f"{package}=={version}" for package, version in known.items())
    if needs[0] not in known:
        return _fail(f"Error while finding module specification for '{name}'", needs[0])
    for package in (*needs, *_for_these_arguments(name, argv)):
        if package not in known:
            return _fail("Traceback (most recent call last):", package)
    if name.endswith("decode_server") and "--help" not in argv and "stub" not in argv:
        major = int(known.get("transformers", "0").partition(".")[0])
        if major < TRANSFORMERS:
            print(
                "ValueError: Tokenizer class TokenizersBackend does not exist or is not currently imported.",
                file=sys.stderr,
            )
            return 1
    return int(import_module(f"gpufleet.twin.{module}").main(argv))


def _for_these_arguments(name: str, argv: list[str]) -> tuple[str, ...]:
    text = " ".join(argv).replace("=", " ")
    if name.endswith("decode_server") and "--help" not in argv:
        return ("transformers", "nixl" if "--transport nixl" in text else "mooncake-transfer-engine")
    if name.endswith("pd_router") and "--parser glm47" in text:
        return ("vllm",)
    return ()


def _fail(where: str, package: str) -> int:
    missing = "mooncake" if package.startswith("mooncake") else packages.module_name(package)
    print(f"{where}\nModuleNotFoundError: No module named '{missing}'", file=sys.stderr)
    return 1


def _real(argv: list[str]) -> int:
    interpreter = getattr(sys, "_base_executable", sys.executable)
    env = dict(os.environ)
    if "TWIN_LAYER" in env:
        site = packages.importable(Path(env["TWIN_LAYER"]))
        env["PYTHONPATH"] = ":".join(filter(None, (str(site), env.get("PYTHONPATH"))))
        argv = ["-S", *argv]
    os.execve(interpreter, [interpreter, *argv], env)  # noqa: S606
