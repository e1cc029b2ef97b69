"""`load_fleet`: a path -> a checked fleet, or every problem with its line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gpufleet.errors import InvalidFleet
from gpufleet.spec.checks import check_fleet
from gpufleet.spec.checks.files import check_secret_files
from gpufleet.spec.document import BadDocument, Mapping, Node, Scalar, line_of, parse_document, plain_value, typed_value
from gpufleet.spec.explain import explain
from gpufleet.spec.model import Fleet
from gpufleet.spec.problems import FleetProblems, Loc, Problem, Severity, place

MAX_BYTES = 1_000_000
_INIT_HINT = "gpufleet init writes a fleet file; another one is named as the first argument or in GPUFLEET_FILE"


@dataclass(frozen=True)
class LoadedFleet:
    """A valid fleet and where it came from."""

    fleet: Fleet
    path: Path
    text: str
    warnings: tuple[Problem, ...]
    """Doubtful, but no reason to stop."""
    _root: Node

    @property
    def base(self) -> Path:
        """The folder that relative paths in the file start at."""
        return self.path.parent

    def line_of(self, loc: Loc) -> int | None:
        """The line, from 1, where a key is written: ``line_of(("pools", "decode", "gpu"))``."""
        return line_of(self._root, loc)


def load_fleet(path: Path) -> LoadedFleet:
    """Read and check a fleet file; no network, no secret is read, but whether others can read one is told.

    Raises:
        InvalidFleet: the file cannot be read, or (as `FleetProblems`) holds at least one error.
    """
    loaded = parse_fleet(read_text(path), path=path)
    open_files = _located(list(check_secret_files(loaded.fleet, loaded.base)), loaded._root)
    return replace(loaded, warnings=(*loaded.warnings, *open_files))


def parse_fleet(text: str, *, path: Path = Path("fleet.yaml")) -> LoadedFleet:
    """Like `load_fleet`, for text that is (or will be) in ``path``."""
    root = _root(text, path)
    fleet = _validated(root, path)
    problems = _located(check_fleet(fleet), root)
    if any(p.severity is Severity.ERROR for p in problems):
        raise FleetProblems(problems, file=str(path))
    return LoadedFleet(fleet, path, text, warnings=problems, _root=root)


def read_text(path: Path) -> str:
    """The text of a fleet file, which is at most 1 MB of UTF-8.

    Raises:
        InvalidFleet: it is not there, not a readable file, larger, or something else than text.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InvalidFleet("there is no such fleet file", where=str(path), hint=_INIT_HINT) from None
    except IsADirectoryError:
        raise InvalidFleet("a folder, not a fleet file", where=str(path), hint=_INIT_HINT) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidFleet(f"the fleet file cannot be read: {reason}", where=str(path)) from None
    if len(data) > MAX_BYTES:
        raise InvalidFleet("a fleet file is at most 1 MB, and this one is larger", where=str(path))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidFleet("the fleet file is not text in UTF-8", where=place(str(path), line)) from None


def _root(text: str, path: Path) -> Mapping:
    try:
        root = parse_document(text)
    except BadDocument as bad:
        raise FleetProblems([bad.problem], file=str(path)) from None
    if root is None:
        raise InvalidFleet("the fleet file is empty", where=str(path), hint=_INIT_HINT)
    if not isinstance(root, Mapping):
        problem = Problem("a fleet file is a section of 'key: value' lines", line=root.line)
        raise FleetProblems([problem], file=str(path))
    return root


def _validated(root: Mapping, path: Path) -> Fleet:
    try:
        return Fleet.model_validate(_input(root))
    except ValidationError as error:
        problems = _located(explain(error), root)
    raise FleetProblems(problems, file=str(path))


def _input(root: Mapping) -> Any:
    """What pydantic reads: text where a field's type decides, typed values in sections whose keys are free."""
    data = plain_value(root)
    _set_typed(data, root, "provider")
    _set_typed(data, root, "lock")
    pools = root.entries.get("pools")
    for name, pool in pools.entries.items() if isinstance(pools, Mapping) else ():
        if isinstance(pool, Mapping):
            _set_typed(data["pools"][name], pool, "provider")
    return data


def _set_typed(data: dict[str, Any], section: Mapping, key: str) -> None:
    if key in data and not isinstance(section.entries[key], Scalar):
        data[key] = typed_value(section.entries[key])


def _located(problems: list[Problem], root: Node) -> tuple[Problem, ...]:
    """With line numbers, errors first, then in file order."""
    lines = [replace(problem, line=line_of(root, problem.loc)) for problem in problems]
    return tuple(sorted(lines, key=lambda p: (p.severity is Severity.WARNING, p.line or 0)))
