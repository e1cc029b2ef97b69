"""pydantic's errors -> problems in the words of the fleet file."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gpufleet.spec.model import Fleet
from gpufleet.spec.problems import Loc, Problem, closest, did_you_mean, dotted, printable, shown

_KINDS: Mapping[str, str] = {
    "int": "is not a whole number",
    "float": "is not a number",
    "decimal": "is not a number",
    "bool": "is not true or false",
    "string": "must be text",
    "dict": "must be a section of 'key: value' lines",
    "model": "must be a section of 'key: value' lines",
    "list": "must be a list",
    "tuple": "must be a list",
    "finite": "must be a finite number",
}


_MOST = 200
"""A file with more errors is something else than a fleet file; guessing at each of its keys would take seconds."""


def explain(error: ValidationError) -> list[Problem]:
    """Every error as a problem, in the order of the model; a misspelt key is told once, not as missing too."""
    details = error.errors(include_url=False)[:_MOST]
    meant = {_meant(tuple(detail["loc"])) for detail in details if detail["type"] == "extra_forbidden"}
    return [_problem(d) for d in details if d["type"] != "missing" or tuple(d["loc"]) not in meant]


def section_at(loc: Loc) -> type[BaseModel] | None:
    """The model class that describes this place of the file; None when it is no section with fixed keys."""
    here: Any = Fleet
    for part in loc:
        here = _child(here, part)
    return here if isinstance(here, type) and issubclass(here, BaseModel) else None


def keys_of(section: type[BaseModel]) -> list[str]:
    """The keys of a section as the file writes them."""
    return [info.alias or name for name, info in section.model_fields.items()]


def _problem(detail: ErrorDetails) -> Problem:
    loc: Loc = tuple(detail["loc"])
    if loc and loc[-1] == "[key]":
        return _said(detail, loc[:-1], loc[-2])
    special = _SPECIAL.get(detail["type"])
    return special(detail, loc) if special else _said(detail, loc, detail["input"])


def _missing(_: ErrorDetails, loc: Loc) -> Problem:
    section = section_at(loc[:-1])
    where = f"{dotted(loc[:-1])}: " if loc[:-1] else ""
    doc = section.model_fields[_field(section, str(loc[-1]))].description if section else None
    return Problem(f"{where}'{loc[-1]}' is missing", loc=loc, hint=doc and f"{loc[-1]}: {doc.splitlines()[0]}")


def _unknown_key(_: ErrorDetails, loc: Loc) -> Problem:
    section, key = section_at(loc[:-1]), str(loc[-1])
    known = keys_of(section) if section else []
    where = f" in {dotted(loc[:-1])}" if loc[:-1] else ""
    guess = _belongs_to(section, key) or did_you_mean(key, known)
    return Problem(f"unknown key '{dotted((key,))}'{where}{guess}", loc=loc, hint=f"allowed here: {', '.join(known)}")


def _meant(loc: Loc) -> Loc:
    """Where an unknown key would stand if it were spelt right."""
    section = section_at(loc[:-1])
    return (*loc[:-1], closest(str(loc[-1]), keys_of(section) if section else []) or "")


def _belongs_to(section: type[BaseModel] | None, key: str) -> str:
    """The section further in that has this key."""
    for name in keys_of(section) if section else []:
        inner = _child(section, name)
        if isinstance(inner, type) and issubclass(inner, BaseModel) and key in keys_of(inner):
            return f"; it belongs under '{name}'"
    return ""


def _choice(detail: ErrorDetails, loc: Loc) -> Problem:
    allowed = [part.strip("'") for part in detail["ctx"]["expected"].replace(" or ", ", ").split(", ")]
    guess = did_you_mean(str(detail["input"]), allowed)
    return _at(loc, detail["input"], f"is not allowed{guess}", hint=f"allowed: {', '.join(allowed)}")


def _bound(words: str, limit: str) -> Callable[[ErrorDetails, Loc], Problem]:
    def explained(detail: ErrorDetails, loc: Loc) -> Problem:
        return _at(loc, detail["input"], f"must be {words} {detail['ctx'][limit]}")

    return explained


def _too_short(_: ErrorDetails, loc: Loc) -> Problem:
    return Problem(f"{dotted(loc)} needs at least one entry", loc=loc)


def _decimals(detail: ErrorDetails, loc: Loc) -> Problem:
    return _at(loc, detail["input"], "has more than 6 decimal places")


_SPECIAL: Mapping[str, Callable[[ErrorDetails, Loc], Problem]] = {
    "missing": _missing,
    "extra_forbidden": _unknown_key,
    "enum": _choice,
    "literal_error": _choice,
    "greater_than": _bound("more than", "gt"),
    "greater_than_equal": _bound("at least", "ge"),
    "less_than": _bound("less than", "lt"),
    "less_than_equal": _bound("at most", "le"),
    "too_short": _too_short,
    "decimal_max_places": _decimals,
}


def _said(detail: ErrorDetails, loc: Loc, value: Any) -> Problem:
    """A validator of our own, or a wrong type."""
    if detail["type"] == "value_error":
        return _at(loc, value, f": {printable(str(detail['ctx']['error']))}")
    kind = detail["type"].partition("_")[0]
    return _at(loc, value, _KINDS.get(kind, f": {detail['msg'].lower()}"))


def _at(loc: Loc, value: Any, complaint: str, hint: str | None = None) -> Problem:
    text = shown(value, loc) if isinstance(value, str) else None
    subject = dotted(loc) or "the file"
    quoted = f": '{text}'" if text is not None else ""
    said = complaint if complaint.startswith(":") else f" {complaint}"
    return Problem(f"{subject}{quoted}{said}", loc=loc, hint=hint, value=text)


def _child(section: Any, part: str | int) -> Any:
    if isinstance(section, type) and issubclass(section, BaseModel):
        info = section.model_fields.get(_field(section, str(part)))
        return _unwrap(info.annotation) if info else None
    if get_origin(section) is dict:
        return _unwrap(get_args(section)[1])
    return None


def _field(section: type[BaseModel], key: str) -> str:
    return next((name for name, info in section.model_fields.items() if info.alias == key), key)


def _unwrap(annotation: Any) -> Any:
    """``X | None`` and ``Annotated[X, ...]`` -> X."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _unwrap(get_args(annotation)[0])
    if origin in {Union, types.UnionType}:
        return _unwrap(next(arg for arg in get_args(annotation) if arg is not type(None)))
    return annotation
