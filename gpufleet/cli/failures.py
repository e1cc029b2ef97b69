"""How a failure is told: one line what, one where, one what next; or a JSON document. And the exit code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import typer

from gpufleet.domain.text import visible
from gpufleet.errors import Declined, GpufleetError, UsageError

BROKEN_PIPE = 141
"""128 + SIGPIPE, as other programs end when their reader goes away."""
MOST_PROBLEMS = 20
"""So that a file full of mistakes does not scroll its first one away; JSON has all."""
_JSON_WORDS = ("--output=json", "-ojson", "-o=json")


@dataclass(frozen=True)
class Report:
    """How the user wants errors told.

    Read from the raw words and not from parsed options, because a command line that cannot be parsed fails too.
    """

    json: bool
    debug: bool

    @classmethod
    def asked_for_by(cls, argv: Sequence[str]) -> Report:
        """Look for ``--output json`` and ``--debug`` before any ``--``."""
        words = list(argv[: argv.index("--")] if "--" in argv else argv)
        json = any(word in _JSON_WORDS for word in words) or any(
            option in {"-o", "--output"} and value == "json" for option, value in pairwise(words)
        )
        return cls(json=json, debug="--debug" in words)

    def show(self, error: BaseException) -> int:
        """Print the error and return the exit code."""
        if self.debug:
            import traceback

            traceback.print_exception(error)
        known = as_gpufleet_error(error)
        if self.json:
            import json

            typer.echo(json.dumps({"error": document(known)}, indent=2, ensure_ascii=False))
        else:
            typer.echo(visible("\n".join(lines(known))), err=True)
        return known.exit_code


def lines(error: GpufleetError) -> list[str]:
    """``error: ...``, then where and what next, each on its line; for a fleet file every problem, errors first."""
    problems = _problems(error)
    if not problems:
        return _block("error", error.message, error.where, error.hint)
    blocks = [_block(p["severity"], p["message"], p["where"], p["hint"]) for p in problems[:MOST_PROBLEMS]]
    told = [line for block in blocks for line in block]
    return told + ([f"and {len(problems) - MOST_PROBLEMS} more"] if len(problems) > MOST_PROBLEMS else [])


def _block(severity: str, message: str, where: str | None, hint: str | None) -> list[str]:
    told = [f"{severity}: {message}"]
    told += [f"  at: {where}"] if where else []
    return told + ([f"  next: {hint}"] if hint else [])


def document(error: GpufleetError) -> dict[str, Any]:
    """The same as JSON."""
    told: dict[str, Any] = {
        "kind": kind(error),
        "exit_code": error.exit_code,
        "message": error.message,
        "where": error.where,
        "hint": error.hint,
    }
    return told | {"problems": problems} if (problems := _problems(error)) else told


def kind(error: GpufleetError) -> str:
    """``invalid-fleet``: the name of the family that decides the exit code, for scripts."""
    family = next(c for c in type(error).__mro__ if "exit_code" in vars(c))
    return "".join(f"-{char.lower()}" if char.isupper() else char for char in family.__name__).lstrip("-")


def as_gpufleet_error(error: BaseException) -> GpufleetError:
    """Give every failure a message, an exit code and a next step."""
    if isinstance(error, GpufleetError):
        return error
    if isinstance(error, typer.TyperException):
        return _usage(error)
    if isinstance(error, typer.Abort):
        return Declined("nobody answered the question", hint="say yes in advance with --yes")
    if isinstance(error, OSError) and error.strerror:
        return GpufleetError(error.strerror.lower(), where=error.filename and str(error.filename))
    return GpufleetError(
        f"internal error: {type(error).__name__}: {error}",
        hint="run it again with --debug and report what it prints",
    )


def _usage(error: typer.TyperException) -> GpufleetError:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "gpufleet"
    return UsageError(" ".join(error.format_message().split()), hint=f"{command} --help")


def _problems(error: GpufleetError) -> list[dict[str, Any]]:
    """All problems of an `InvalidFleet` that carries them, errors before warnings."""
    file = re.sub(r":\d+$", "", error.where or "")
    told = [
        {
            "severity": str(p.severity),
            "message": p.message,
            "where": f"{file}:{p.line}" if p.line else file,
            "path": p.path,
            "hint": p.hint,
        }
        for p in getattr(error, "problems", ())
    ]
    return sorted(told, key=lambda problem: problem["severity"] != "error")
