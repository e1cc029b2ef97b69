"""``gpufleet init``."""

from __future__ import annotations

import sys
from dataclasses import fields
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpufleet.cli.options import (
    DEFAULT_FILE,
    DebugOption,
    FileOption,
    FleetArgument,
    OutputFormat,
    OutputOption,
    YesOption,
)
from gpufleet.errors import Declined, InvalidFleet, UsageError

if TYPE_CHECKING:
    from gpufleet.spec.template import Answers

QUESTIONS = {
    "name": "Name of the fleet",
    "provider": "Where to rent (a provider; mock is free)",
    "prefill": "Prefill nodes (vLLM)",
    "decode": "Decode nodes (TileRT; at most as many as prefill nodes)",
    "native": "Native decode nodes (vLLM)",
    "prefill_gpu": "GPUs of a prefill or native node",
    "decode_gpu": "GPUs of a decode node",
    "listen": "Address of the endpoint",
}
_WHERE_KEYS = "Keep the API keys in the environment or in new files (env, file)"


class Keys(StrEnum):
    """Where the channels' API keys are kept."""

    ENV = "env"
    FILE = "file"


def _option(text: str, *, least: int | None = None) -> Any:
    return typer.Option(help=text, show_default=False, min=least)


def command(
    fleet: FleetArgument = None,
    *,
    name: Annotated[str | None, _option("Name of the fleet.")] = None,
    provider: Annotated[str | None, _option("Where to rent.")] = None,
    prefill: Annotated[int | None, _option("Prefill nodes (vLLM).", least=0)] = None,
    decode: Annotated[int | None, _option("Decode nodes (TileRT).", least=0)] = None,
    native: Annotated[int | None, _option("Native decode nodes (vLLM).", least=0)] = None,
    prefill_gpu: Annotated[str | None, _option("GPUs of a prefill or native node, e.g. H200:8.")] = None,
    decode_gpu: Annotated[str | None, _option("GPUs of a decode node, e.g. B200:8.")] = None,
    listen: Annotated[str | None, _option("Address of the endpoint, e.g. 127.0.0.1:8080.")] = None,
    max_usd_per_hour: Annotated[str | None, _option("Most the whole fleet may cost per hour, in USD.")] = None,
    keys: Annotated[Keys | None, _option("API keys from the environment, or in new files.")] = None,
    yes: YesOption = False,
    file: FileOption = None,
    output: OutputOption = OutputFormat.TEXT,
    _debug: DebugOption = False,
) -> None:
    """Write a commented fleet file to start from.

    Asks for what no option says; --yes takes the defaults. Beside it comes fleet.schema.json, for editors, and with
    --keys file a new API key per channel in secrets/. Overwrites nothing.
    """
    path = _target(fleet, file)
    given = {
        "name": name,
        "provider": provider,
        "prefill": prefill,
        "decode": decode,
        "native": native,
        "prefill_gpu": prefill_gpu,
        "decode_gpu": decode_gpu,
        "listen": listen,
    }
    some = any(value is not None for value in (*given.values(), max_usd_per_hour, keys))
    values, keys = _ask(given, keys, ask=not yes and _may_ask(some_given=some))
    written = _write(path, _answers(values, max_usd_per_hour, keys), keys)
    _show(path, written, keys, output)


def _target(argument: Path | None, option: Path | None) -> Path:
    """The file to write; must not exist."""
    if argument and option:
        raise UsageError(f"two fleet files: {argument} and {option}", hint="name it once")
    path = argument or option or DEFAULT_FILE
    if path.exists():
        raise InvalidFleet(f"{path} exists already; init overwrites nothing", hint="gpufleet init OTHER.yaml")
    return path


def _may_ask(*, some_given: bool) -> bool:
    """Whether there is somebody to ask; without, at least one option must show that the defaults are meant."""
    if sys.stdin.isatty():
        return True
    if some_given:
        return False
    raise Declined(
        "init asks questions, and there is no terminal to ask on", hint="gpufleet init --yes  (the defaults)"
    )


def _ask(given: dict[str, Any], keys: Keys | None, *, ask: bool) -> tuple[dict[str, Any], Keys]:
    """Fill in what is not given, by questions or by defaults."""
    from gpufleet.spec.template import Answers

    defaults = {field.name: field.default for field in fields(Answers)}
    values = {
        key: value if value is not None else _prompt(QUESTIONS[key], defaults[key], ask=ask)
        for key, value in given.items()
    }
    return values, keys or Keys(_prompt(_WHERE_KEYS, str(Keys.ENV), ask=ask))


def _prompt(question: str, default: Any, *, ask: bool) -> Any:
    if not ask:
        return default
    return typer.prompt(question, default=default, type=type(default), err=True)


def _answers(values: dict[str, Any], limit: str | None, keys: Keys) -> Answers:
    from gpufleet.spec.template import Answers

    if keys is Keys.FILE:
        values = {**values, "chat_key": "file:secrets/chat.key", "batch_key": "file:secrets/batch.key"}
    return Answers(**values, usd_per_hour=None if limit is None else _usd(limit))


def _usd(text: str) -> Decimal:
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or amount <= 0:
        raise UsageError(f"'{text}' is not an amount of USD", hint="--max-usd-per-hour 250")
    return amount


def _write(path: Path, answers: Answers, keys: Keys) -> list[Path]:
    """Write the files, the fleet file last. Nothing is written unless the fleet file is valid."""
    from gpufleet.cli.newfiles import create, new_key, write_schema
    from gpufleet.spec.load import parse_fleet
    from gpufleet.spec.template import render_template

    text = render_template(answers)
    fleet = parse_fleet(text, path=path).fleet
    path.parent.mkdir(parents=True, exist_ok=True)
    written = write_schema(path.parent)
    if keys is Keys.FILE:
        for channel in fleet.router.channels.values():
            written += new_key(channel.key.path(path.parent))
    create(path, text, mode=0o644)
    return [path, *written]


def _show(path: Path, written: list[Path], keys: Keys, output: OutputFormat) -> None:
    named = "" if path == DEFAULT_FILE else f" {path}"
    exports = ["GPUFLEET_CHAT_KEY", "GPUFLEET_BATCH_KEY"] if keys is Keys.ENV else []
    following = [f"gpufleet {word}{named}" for word in ("validate", "plan", "up")]
    if output is OutputFormat.JSON:
        from gpufleet.reporting.json import dumps

        typer.echo(dumps({"path": path, "written": written, "needs_env": exports, "next": following}))
        return
    typer.echo("wrote " + ", ".join(map(str, written)))
    typer.echo("next:")
    for variable in exports:
        typer.echo(f"  export {variable}=$(openssl rand -hex 24)")
    for line in following:
        typer.echo(f"  {line}")
