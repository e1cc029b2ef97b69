from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpufleet.playbook.compile import compile_script
from gpufleet.playbook.load import Playbook, load_file

FOLDER = Path(__file__).parents[2] / "playbooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
SHELLCHECK = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or "shellcheck"
HELPERS = "progress() { :; }\nnote() { :; }\ndata() { :; }\nfact() { :; }\nfail() { exit 1; }\n"
SCRIPTS = sorted([*FOLDER.glob("files/*.sh"), *FOLDER.parent.glob("gpufleet/*/*.sh")])
NOT_CALLED = "SC2317,SC2329"
"""Functions that a part does not call, or that the runner calls by a computed name."""


def load(name: str) -> Playbook:
    return load_file(FOLDER / f"{name}.yaml")


@pytest.mark.parametrize("name", NAMES)
def test_every_shell_text_is_clean_posix_sh(name: str, tmp_path: Path) -> None:
    files = []
    for step in load(name).steps:
        for key, text in step.shell_parts.items():
            files.append(tmp_path / f"{step.name}.{key}")
            files[-1].write_text(f"#!/bin/sh\nset -eu\n{HELPERS}{text}\n")
    done = subprocess.run(
        [SHELLCHECK, "-s", "sh", "-e", NOT_CALLED, *files], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_every_compiled_script_parses(name: str) -> None:
    script = compile_script(load(name), "job")
    done = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", NAMES)
def test_a_playbook_is_named_as_its_file_and_uses_only_inputs_that_it_declares(name: str) -> None:
    playbook = load(name)
    assert playbook.name == name
    texts = "\n".join(text for step in playbook.steps for text in step.shell_parts.values())
    texts += "\n".join(playbook.file_texts.values())
    for declared in playbook.inputs:
        assert declared in texts, f"{declared} is never used"
    for word in set(_variables(texts)) - set(playbook.all_inputs) - {"GF_FILES", "GF_JOB_DIR", "GF_RUN"}:
        raise AssertionError(f"{word} is used and not declared")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_the_engines_own_shell_is_clean_posix_sh(path: Path) -> None:
    done = subprocess.run([SHELLCHECK, "-s", "sh", "-e", NOT_CALLED, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def _variables(text: str) -> list[str]:
    words = "".join(c if c.isalnum() or c == "_" else " " for c in text).split()
    return [word for word in words if word.startswith("GF_") and not word.endswith("_")]
