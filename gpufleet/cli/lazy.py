"""Commands that are listed without being imported, so that ``--help`` and completion feel instant."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from gpufleet.cli.pipes import quiet_when_the_reader_goes


class Entry(NamedTuple):
    """Where a command lives and what ``--help`` says about it (the first line of its docstring; a test compares)."""

    module: str
    summary: str


COMMANDS = {
    "init": Entry("init", "Write a commented fleet file to start from."),
    "validate": Entry("validate", "Check the fleet file, without network and without cost."),
    "schema": Entry("schema", "Print the JSON Schema of the fleet file."),
    "providers": Entry("providers", "List providers; show one; try one, read-only."),
    "offers": Entry("offers", "Compare what providers offer now, per node."),
    "plan": Entry("plan", "Show what up would do and cost."),
    "up": Entry("up", "Bring the fleet up, or bring it to what the file says."),
    "scale": Entry("scale", "Run more or fewer nodes of a pool than the fleet file says."),
    "tick": Entry("tick", "Follow the schedule, replace what is lost, hold the budget."),
    "watch": Entry("watch", "Tick again and again until Ctrl-C."),
    "schedule": Entry("schedule", "Show what the schedule will do; have cron carry it out."),
    "status": Entry("status", "Show nodes, routes, endpoint and bill."),
    "cost": Entry("cost", "Show what the fleet has cost, and what it would have cost."),
    "ask": Entry("ask", "Send one chat message and stream the answer."),
    "logs": Entry("logs", "Print the logs of a node."),
    "ssh": Entry("ssh", "Open a shell on a node."),
    "exec": Entry("exec", "Run a command on a node, a pool or all nodes."),
    "weights": Entry("weights", "Verify, copy, pull or push the weights of rented nodes."),
    "smoke": Entry("smoke", "For CI: bring a fleet up, ask on every channel, take it down."),
    "render": Entry("render", "Print what would run: a script, a launch command, haproxy.cfg."),
    "reconcile": Entry("reconcile", "Compare what the providers have with what is recorded."),
    "adopt": Entry("adopt", "Take over instances that are in no record here."),
    "reap": Entry("reap", "End what has outlived its ttl, for every fleet of the ledger."),
    "down": Entry("down", "Remove everything the fleet rents, and print the bill."),
}


class LazyGroup(TyperGroup):
    """Holds a stub per command; the real one is made when it is about to run or to print its own help."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        self.commands = {
            name: TyperCommand(name=name, help=entry.summary, rich_markup_mode=None) for name, entry in COMMANDS.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Swap the stub for the command."""
        name, stub, rest = super().resolve_command(ctx, args)
        return (name, load(name), rest) if name else (name, stub, rest)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse, and print ``--help``. Guarded here, because further out typer ends a broken pipe with code 1."""
        with quiet_when_the_reader_goes():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with quiet_when_the_reader_goes():
            return super().invoke(ctx)


class Command(TyperCommand):
    """A command whose usage line is written by hand, where words such as ``[FLEET.yaml] NODE`` share one argument."""

    usage = ""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """``[OPTIONS] [FLEET.yaml] NODE``."""
        return ["[OPTIONS]", self.usage] if self.usage else super().collect_usage_pieces(ctx)


def load(name: str) -> Any:
    """Import a command's module and build the command from its function."""
    module = importlib.import_module(f"gpufleet.cli.commands.{COMMANDS[name].module}")
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, cls=Command)(module.command)
    command = typer.main.get_command(app)
    command.usage = getattr(module, "USAGE", "")  # type: ignore[attr-defined]
    return command
