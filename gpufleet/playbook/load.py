"""Playbook files as types. What a step means is in `runner.sh` beside this file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from gpufleet.catalog import shipped
from gpufleet.errors import InvalidFleet
from gpufleet.spec.base import Strict
from gpufleet.spec.model import Duration

COMMON_INPUTS = {
    "GF_WORK": "directory on the node where gpufleet keeps its files; absolute",
    "GF_FLEET": "name of the fleet",
    "GF_NODE": "name of the node, such as decode/0",
}
"""Every playbook has these, declared or not."""

_RESERVED = re.compile(r"PATH|HOME|IFS|ENV|SHELL|USER|PWD|LD_.*|GF_(JOB_DIR|FILES|CLOCK|RUN)")
_TRACING = re.compile(r"^\s*set\s+(-\w*x|-o\s+xtrace)", re.MULTILINE)


def _check_input_name(value: str) -> str:
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", value) or _RESERVED.fullmatch(value):
        raise ValueError("an input is an environment variable of A-Z, 0-9 and _, and none that the shell itself uses")
    return value


def _check_shell(value: str) -> str:
    if not value.strip():
        raise ValueError("is empty")
    if _TRACING.search(value):
        raise ValueError("'set -x' would write values, secrets among them, into the step's log")
    return value


StepName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")]
InputName = Annotated[str, AfterValidator(_check_input_name)]
Shell = Annotated[str, AfterValidator(_check_shell)]


class Input(Strict):
    """A value that a playbook takes, as an environment variable."""

    description: str
    default: str | None = None
    secret: bool = False
    """Blanked in failure messages, and never shown by `gpufleet render`."""


InputEntry = Annotated[Input, BeforeValidator(lambda v: {"description": v} if isinstance(v, str) else v)]


class Step(Strict):
    """One step. ``run``, ``unless``, ``verify``, ``when`` and ``progress`` are POSIX shell, run with ``set -eu``."""

    name: StepName
    run: Shell
    unless: Shell | None = None
    """True means that there is nothing to do."""
    verify: Shell | None = None
    """Must hold after ``run``; asked again when a later run finds the step finished."""
    when: Shell | None = None
    """False means that the step does not apply with these inputs."""
    progress: Shell | None = None
    """Prints ``PERCENT [TEXT]``; asked every 2 s while the step runs."""
    timeout: Duration = timedelta(minutes=10)
    """Of one attempt, with its ``unless`` and ``verify``."""
    retries: int = Field(default=0, ge=0, le=100)
    retry_wait: Duration = timedelta(seconds=5)
    always: bool = False
    """Run even if it finished earlier with the same inputs."""

    @property
    def shell_parts(self) -> dict[str, str]:
        """The shell texts that this step has, by their key."""
        parts = {key: getattr(self, key) for key in ("run", "unless", "verify", "when", "progress")}
        return {key: text for key, text in parts.items() if text is not None}


class Playbook(Strict):
    """A list of steps that takes a node to a state."""

    name: StepName
    summary: str
    inputs: dict[InputName, InputEntry] = Field(default_factory=dict)
    files: tuple[FileName, ...] = ()
    """Texts from ``files/`` beside the playbook, found on the node in ``$GF_FILES``."""
    fingerprint: bool = False
    """The first event tells what the node is."""
    steps: tuple[Step, ...] = Field(min_length=1)
    file_texts: dict[str, str] = Field(default_factory=dict, exclude=True)
    """What ``files`` names, read by `load_file`."""

    @model_validator(mode="after")
    def _steps_have_different_names(self) -> Playbook:
        names = [step.name for step in self.steps]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two steps are named '{min(repeated)}'")
        return self

    @property
    def all_inputs(self) -> dict[str, Input]:
        """Its own inputs and the common ones."""
        common = {name: Input(description=text) for name, text in COMMON_INPUTS.items()}
        return common | self.inputs


def load_shipped(name: str, *, extra_dirs: Sequence[Path] = ()) -> Playbook:
    """The playbook of that name: the user's own, or the one that came with gpufleet.

    Raises:
        InvalidFleet: when there is none, or it is wrong.
    """
    return load_file(shipped.find("playbooks", name, extra_dirs=extra_dirs))


def load_file(path: Path) -> Playbook:
    """Read one playbook file and the files that it embeds.

    Raises:
        InvalidFleet: with file and line of what is wrong.
    """
    text = _read(path)
    try:
        root = yaml.compose(text, Loader=yaml.CSafeLoader)
        content = yaml.load(text, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InvalidFleet(f"not YAML: {error.problem}", where=f"{path}:{line}") from error
    except yaml.YAMLError as error:
        raise InvalidFleet("not YAML: it holds a character that YAML does not allow", where=str(path)) from error
    if not isinstance(content, dict) or root is None:
        raise InvalidFleet("a playbook is a mapping with name, summary and steps", where=f"{path}:1")
    if "file_texts" in content:
        raise InvalidFleet("unknown key 'file_texts'", where=f"{path}:{_line_of(root, ('file_texts',))}")
    try:
        playbook = Playbook.model_validate(content)
        return playbook.model_copy(update={"file_texts": _embedded(path, playbook.files)})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidFleet(_explain(first), where=f"{path}:{_line_of(root, first['loc'])}") from error


def _embedded(path: Path, files: tuple[str, ...]) -> dict[str, str]:
    return {name: _read(path.parent / "files" / name) for name in files}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidFleet(f"cannot be read: {error.strerror}", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise InvalidFleet("is not UTF-8 text", where=str(path)) from error


def _explain(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"] if part != "[key]") or "playbook"
    if error["type"] == "extra_forbidden":
        return f"unknown key '{where}'"
    if error["type"] == "missing":
        return f"'{where}' is missing"
    return f"'{where}': {error['msg'].removeprefix('Value error, ')}"


def _line_of(node: yaml.Node, location: Sequence[int | str]) -> int:
    """The line of a place in the file, or of the nearest thing around it that is there."""
    line = int(node.start_mark.line) + 1
    for part in location:
        if isinstance(node, yaml.MappingNode):
            found = next(((k, v) for k, v in node.value if k.value == part), None)
            if found is None:
                return line
            line, node = int(found[0].start_mark.line) + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = int(node.start_mark.line) + 1
        else:
            return line
    return line
