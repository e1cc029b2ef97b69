"""What is wrong with a fleet file, as values, and the error that carries them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from gpufleet.errors import InvalidFleet

Loc = tuple[str | int, ...]
"""A place in the file: keys and list positions from the top."""

_SECRET_KEY = re.compile(
    r"(?:^|[_.-])(?:api_?keys?|keys?|token|passwords?|passwd|passphrase|secrets?|credentials?)$", re.IGNORECASE
)
_PUBLIC_KEY = re.compile(r"(?:host|public|ssh|authorized)_keys?$", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"(?:sk-|hf_|ghp_|gho_|github_pat_|glpat-|xox[abps]-|nvapi-|rpa_|AKIA)[A-Za-z0-9_-]{12,}"
    r"|eyJ[A-Za-z0-9_-]{12,}\.[A-Za-z0-9_-]{6,}|-----BEGIN "
)
_LONGEST_SHOWN = 60


class Severity(StrEnum):
    """Whether a problem stops the run."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, or doubtful, at one place of the file."""

    message: str
    """One line: what is wrong, with the offending value unless it may be a secret."""
    loc: Loc = ()
    hint: str | None = None
    """What is allowed, or the edit to make."""
    value: str | None = None
    """The offending value as text; None when it may be a secret or is not one value."""
    severity: Severity = Severity.ERROR
    line: int | None = None
    """From 1; None when the file has no such line (a missing file, a default)."""

    @property
    def path(self) -> str:
        """``pools.decode.gpu``."""
        return dotted(self.loc)


class FleetProblems(InvalidFleet):
    """A fleet file with at least one error. ``message`` tells the first, ``problems`` all, warnings included."""

    def __init__(self, problems: Iterable[Problem], *, file: str) -> None:
        self.problems = tuple(problems)
        first = next(p for p in self.problems if p.severity is Severity.ERROR)
        super().__init__(first.message, where=place(file, first.line), hint=_hint(first, self.problems))


def place(file: str, line: int | None) -> str:
    """``fleet.yaml:12``."""
    return file if line is None else f"{file}:{line}"


def dotted(loc: Loc) -> str:
    """``pools.decode.gpu``, ``provider.hosts[0].host``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return one_line(text.removeprefix("."))


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant."""
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower()[:80], by_lower, n=1, cutoff=0.6)
    return by_lower[near[0]] if near else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'count'?``, or nothing when no known word is near."""
    near = closest(word, known)
    return f"; did you mean '{near}'?" if near else ""


def names_a_secret(key: str) -> bool:
    """Whether a key of this name usually holds a secret (``api_key``, ``accessKey``; not ``host_key``)."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key)
    return bool(_SECRET_KEY.search(words)) and not _PUBLIC_KEY.search(words)


def looks_secret(value: str) -> bool:
    """Whether a text has the form of a well-known kind of access key."""
    return bool(_SECRET_VALUE.search(value))


def shown(value: str, loc: Loc) -> str | None:
    """The value as a message may repeat it: on one line, shortened; None when it may be a secret."""
    if looks_secret(value) or any(isinstance(part, str) and names_a_secret(part) for part in loc):
        return None
    return one_line(value)


def one_line(text: str) -> str:
    """Printable and short."""
    clean = printable(text[: _LONGEST_SHOWN + 1])
    return clean if len(clean) <= _LONGEST_SHOWN else clean[:_LONGEST_SHOWN] + "..."


def printable(text: str) -> str:
    """The text with everything escaped that does not print."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _hint(first: Problem, problems: tuple[Problem, ...]) -> str | None:
    others = sum(p.severity is Severity.ERROR for p in problems) - 1
    more = f"{others} more problem{'s' if others > 1 else ''}: gpufleet validate shows all" if others else None
    return "; ".join(text for text in (first.hint, more) if text) or None
