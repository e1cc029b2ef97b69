"""Arguments and options that several commands share, and how the fleet file is found among them."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gpufleet.errors import InvalidFleet, UsageError

DEFAULT_FILE = Path("fleet.yaml")
_SUFFIXES = (".yaml", ".yml")


class OutputFormat(StrEnum):
    """What stdout carries."""

    TEXT = "text"
    JSON = "json"


FleetArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="FLEET.yaml", show_default=False, help="The fleet file; else $GPUFLEET_FILE, else ./fleet.yaml."
    ),
]
WordsArgument = Annotated[list[str] | None, typer.Argument(hidden=True, show_default=False)]
"""``[FLEET.yaml] WORDS``; the command's usage line says which words."""
FileOption = Annotated[Path | None, typer.Option("--file", "-f", metavar="FLEET.yaml", help="The fleet file.")]
OutputOption = Annotated[OutputFormat, typer.Option("--output", "-o", help="Text for people, or JSON alone on stdout.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback when something fails.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def fleet_file(argument: Path | None, option: Path | None = None) -> Path:
    """The fleet file of a command that takes nothing else.

    Raises:
        UsageError: when it is named twice.
        InvalidFleet: when none is named and there is no ./fleet.yaml.
    """
    if argument and option:
        raise UsageError(f"two fleet files: {argument} and {option}", hint="name it once")
    return argument or option or _default()


def split_arguments(words: list[str] | None, option: Path | None = None) -> tuple[Path, list[str]]:
    """The fleet file and the other words of a command such as ``ask [FLEET.yaml] TEXT``.

    The first word is the fleet file when it ends in .yaml or .yml, unless ``--file`` names one. A question may end so
    too, therefore words with blanks in them must also exist.
    """
    rest = list(words or [])
    if option:
        return option, rest
    if rest and _names_a_file(rest[0]):
        return Path(rest[0]), rest[1:]
    return _default(), rest


def _names_a_file(word: str) -> bool:
    return word.endswith(_SUFFIXES) and (not any(map(str.isspace, word)) or Path(word).is_file())


def _default() -> Path:
    if chosen := os.environ.get("GPUFLEET_FILE"):
        return Path(chosen).expanduser()
    if not DEFAULT_FILE.exists():
        raise InvalidFleet(
            "no fleet file: none was named, GPUFLEET_FILE is not set, and there is no ./fleet.yaml",
            hint="name one (gpufleet COMMAND FLEET.yaml) or write one (gpufleet init)",
        )
    return DEFAULT_FILE
