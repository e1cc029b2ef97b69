"""Write docs/cli.md from the commands' own help. With --check: exit 1 when the file is not current."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from gpufleet.cli.lazy import COMMANDS, load
from gpufleet.cli.main import app

TARGET = Path(__file__).with_name("cli.md")
HEAD = """# Commands

Generated from `--help` by `make docs`; a test keeps it current. Exit codes: [exit-codes.md](exit-codes.md).

Results go to stdout, progress and questions to stderr. With `--output json` stdout carries one JSON document (`logs`
and `exec`: one per line). Money is text in USD (`"usd_per_hour": "41.50"`), times are UTC (`"2026-05-04T12:30:00Z"`),
nodes are `"decode/0"`, unknown is `null`.
"""


def reference() -> str:
    """The whole page."""
    parts = [HEAD, _section("gpufleet", typer.main.get_command(app))]
    parts += [_section(f"gpufleet {name}", load(name)) for name in COMMANDS]
    return "\n".join(parts)


def _section(title: str, command: object) -> str:
    with command.make_context(title, [], resilient_parsing=True, terminal_width=80) as context:
        text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    return f"## {title}\n\n```\n{text}\n```\n"


def main() -> int:
    """Write or check the page."""
    page = reference()
    if "--check" not in sys.argv:
        TARGET.write_text(page, encoding="utf-8")
        return 0
    if TARGET.read_text(encoding="utf-8") == page:
        return 0
    sys.stderr.write("docs/cli.md is not current: run make docs\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
