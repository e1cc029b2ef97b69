"""``gpufleet ask``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli.options import DebugOption, FileOption, OutputFormat, OutputOption, WordsArgument, split_arguments
from gpufleet.cli.work import opened
from gpufleet.errors import UsageError

if TYPE_CHECKING:
    from gpufleet.routing.client import Answer

USAGE = "[FLEET.yaml] TEXT"


def command(
    words: WordsArgument = None,
    *,
    channel: Annotated[str | None, typer.Option("--channel", "-c", help="Ask as this channel.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Longest answer, in tokens.")] = 512,
    file: FileOption = None,
    output: OutputOption = OutputFormat.TEXT,
    _debug: DebugOption = False,
) -> None:
    """Send one chat message and stream the answer.

    The answer goes to stdout as it comes; which route served it, the time to first token and the tokens per second
    go to stderr. A TEXT of - is read from stdin.
    """
    from gpufleet.engine import api

    path, rest = split_arguments(words, file)
    text = _question(rest)
    pieces: list[str] = []
    show = pieces.append if output is OutputFormat.JSON else _print_piece
    with opened(path) as session:
        answer = api.ask(session, text, channel=channel, max_tokens=max_tokens, on_text=show)
        asked_as = channel or next(iter(session.fleet.router.channels))
    if output is OutputFormat.JSON:
        from gpufleet.reporting.json import dumps, to_json

        typer.echo(dumps({"channel": asked_as, "text": "".join(pieces), **to_json(answer)}))
        return
    typer.echo("")
    typer.secho(stats_line(answer), err=True, dim=True)


def stats_line(answer: Answer) -> str:
    """``cell-decode-0 · first token after 0.41 s · 87 tokens at 181.3/s · waited 12 ms``."""
    parts = [answer.served_by or "route unknown"]
    parts += [f"first token after {answer.ttft_s:.2f} s"] if answer.ttft_s is not None else []
    speed = f" at {answer.tokens_per_s:.1f}/s" if answer.tokens_per_s is not None else ""
    parts.append(f"{answer.tokens} tokens{speed}")
    parts += [f"waited {answer.queue_ms:.0f} ms"] if answer.queue_ms else []
    parts += ["cut by --max-tokens"] if answer.finish_reason == "length" else []
    return " · ".join(parts)


def _question(words: list[str]) -> str:
    text = sys.stdin.read() if words == ["-"] else " ".join(words)
    if not text.strip():
        raise UsageError("nothing to ask", hint=f"gpufleet ask {USAGE}")
    return text


def _print_piece(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()
