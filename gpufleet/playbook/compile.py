"""A playbook and its values -> one shell script and one file of environment variables. Pure."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping
from functools import cache
from importlib import resources

from gpufleet.errors import InvalidFleet
from gpufleet.playbook.job import CompiledJob
from gpufleet.playbook.load import Playbook, Step

_JOB_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_MAX_VALUE_BYTES = 120_000
"""Linux hands at most 128 KiB to a program in one variable."""
_WORD = re.compile(r"[A-Z][A-Z0-9_]*")


def compile_job(
    playbook: Playbook, *, job_name: str, values: Mapping[str, str], secrets: Mapping[str, str] | None = None
) -> CompiledJob:
    """The job that runs ``playbook`` with these values.

    Values and secrets reach the steps as environment variables only; the script itself holds neither, and is the same
    for every node.

    Raises:
        InvalidFleet: when an input is missing, unknown, too long, or a secret came as a plain value.
    """
    if not _JOB_NAME.fullmatch(job_name):
        raise InvalidFleet(f"'{job_name}' is not a job name", hint="use a-z, 0-9, '.', '_' and '-'")
    inputs = _resolve(playbook, values, secrets or {})
    script = compile_script(playbook, job_name)
    environment = _environment(playbook, inputs)
    digest = hashlib.sha256(f"{script}\0{environment}".encode()).hexdigest()
    return CompiledJob(job_name, script, environment, digest, tuple(step.name for step in playbook.steps))


def compile_script(playbook: Playbook, job_name: str) -> str:
    """The script alone, which needs no values; what `gpufleet render` shows."""
    parts = [
        f"#!/bin/sh\n# gpufleet job {job_name}: playbook {playbook.name}\n",
        _shell_file("runner.sh"),
        _shell_file("fingerprint.sh") if playbook.fingerprint else "",
        f"gf_job={shlex.quote(job_name)}\ngf_count={len(playbook.steps)}\n"
        f"gf_fingerprint={'1' if playbook.fingerprint else ''}\ngf_secrets={shlex.quote(_secret_names(playbook))}\n",
        _step_table(playbook),
        *(_functions(number, step) for number, step in enumerate(playbook.steps, 1)),
        _file_writer(playbook),
        'gf_dispatch "$@"\n',
    ]
    return "\n".join(part for part in parts if part)


def _resolve(playbook: Playbook, values: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """Every input's value: given, or its default."""
    declared = playbook.all_inputs
    where = f"playbook {playbook.name}"
    if unknown := (values.keys() | secrets.keys()) - declared.keys():
        raise InvalidFleet(
            f"'{min(unknown)}' is not an input of this playbook", where=where, hint=f"it takes {', '.join(declared)}"
        )
    plain = [name for name in values if declared[name].secret]
    if plain:
        raise InvalidFleet(f"'{plain[0]}' is a secret and must be given as one", where=where)
    given = {**values, **secrets}
    resolved = {name: given.get(name, item.default) for name, item in declared.items()}
    for name, value in resolved.items():
        if value is None:
            raise InvalidFleet(f"input '{name}' is missing ({declared[name].description})", where=where)
        if "\0" in value or len(value.encode()) > _MAX_VALUE_BYTES:
            raise InvalidFleet(f"input '{name}' is longer than {_MAX_VALUE_BYTES} bytes or holds a NUL", where=where)
    return {name: value for name, value in resolved.items() if value is not None}


def _environment(playbook: Playbook, inputs: Mapping[str, str]) -> str:
    exports = [f"export {name}={shlex.quote(value)}" for name, value in sorted(inputs.items())]
    hashes = [f"gf_hash_{number}={_step_hash(playbook, step, inputs)}" for number, step in enumerate(playbook.steps, 1)]
    return "\n".join([*exports, *hashes, ""])


def _step_hash(playbook: Playbook, step: Step, inputs: Mapping[str, str]) -> str:
    """Changes with the step's texts, the files these name, and the values of the inputs that either names."""
    text = "\0".join(f"{key}\0{part}" for key, part in sorted(step.shell_parts.items()))
    text += "".join(content for name, content in sorted(playbook.file_texts.items()) if name in text)
    named = set(_WORD.findall(text)) & inputs.keys()
    return hashlib.sha256(repr((text, [(n, inputs[n]) for n in sorted(named)])).encode()).hexdigest()


def _secret_names(playbook: Playbook) -> str:
    return " ".join(name for name, item in playbook.inputs.items() if item.secret)


def _step_table(playbook: Playbook) -> str:
    rows = "\n".join(_table_row(number, step) for number, step in enumerate(playbook.steps, 1))
    return f"gf_step() {{\n  case $1 in\n{rows}\n  esac\n}}\n"


def _table_row(number: int, step: Step) -> str:
    flags = {f"has_{key}": getattr(step, key) is not None for key in ("unless", "verify", "when", "progress")}
    settings = {
        "name": step.name,
        "limit": int(step.timeout.total_seconds()),
        "retries": step.retries,
        "retry_wait": int(step.retry_wait.total_seconds()),
        "always": "1" if step.always else "",
        **{key: "1" if on else "" for key, on in flags.items()},
    }
    return f"  {number}) " + " ".join(f"gf_{key}={value}" for key, value in settings.items()) + " ;;"


def _functions(number: int, step: Step) -> str:
    """One function per part. The text stands unindented, so that here-documents in it keep working."""
    return "\n".join(f"step_{number}_{key}() {{\n{text.rstrip()}\n}}" for key, text in step.shell_parts.items()) + "\n"


def _file_writer(playbook: Playbook) -> str:
    body = "".join(_write_file(name, text) for name, text in sorted(playbook.file_texts.items()))
    return f"gf_write_files() {{\n:\n{body}}}\n"


def _write_file(name: str, text: str) -> str:
    end = f"GF_END_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return f"cat >\"$GF_FILES/{name}\" <<'{end}'\n{text if text.endswith(chr(10)) else text + chr(10)}{end}\n"


@cache
def _shell_file(name: str) -> str:
    return resources.files("gpufleet.playbook").joinpath(name).read_text(encoding="utf-8")
