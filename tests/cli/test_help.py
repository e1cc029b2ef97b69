"""Help is instant, complete, and the same in every place that tells it."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from gpufleet import __version__
from gpufleet.cli.lazy import COMMANDS
from tests.cli.shell import gpufleet

ROOT = Path(__file__).parents[2]
HEAVY = {"paramiko", "httpx", "rich", "yaml", "sqlalchemy", "gpufleet.engine", "gpufleet.spec"}


def modules_after(*words: str) -> set[str]:
    """Which modules a command line imports."""
    code = (
        "import sys\n"
        "from gpufleet.cli.main import main\n"
        f"main({list(words)!r})\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize("words", [("--help",), ("--version",), ()])
def test_help_imports_nothing_that_it_does_not_need(words: tuple[str, ...]) -> None:
    assert not modules_after(*words) & {*HEAVY, "pydantic"}


@pytest.mark.parametrize("name", ["init", "validate", "plan", "status", "up", "ssh"])
def test_help_of_a_command_does_not_import_what_the_command_needs(name: str) -> None:
    assert not modules_after(name, "--help") & HEAVY  # typer itself reads options with pydantic


def test_status_needs_neither_an_ssh_nor_an_http_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUFLEET_STATE", str(tmp_path))
    loaded = modules_after("status", str(ROOT / "examples/quickstart.yaml"))
    assert "gpufleet.engine.api" in loaded
    assert not loaded & {"paramiko", "httpx"}


def test_help_of_one_command_imports_no_other_command() -> None:
    commands = {name for name in modules_after("logs", "--help") if name.startswith("gpufleet.cli.commands.")}
    assert commands == {"gpufleet.cli.commands.logs"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_the_command_says_of_itself(name: str) -> None:
    module = importlib.import_module(f"gpufleet.cli.commands.{COMMANDS[name].module}")
    doc = inspect.getdoc(module.command)
    assert doc is not None
    assert doc.splitlines()[0] == COMMANDS[name].summary


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_the_common_options(name: str) -> None:
    result = gpufleet(name, "--help")
    assert result.code == 0
    assert result.out.startswith(f"Usage: gpufleet {name} [OPTIONS]")
    assert COMMANDS[name].summary in result.out
    assert "--output" in result.out
    assert "--debug" in result.out
    assert max(map(len, result.out.splitlines())) <= 80


def test_every_module_of_a_command_is_in_the_table() -> None:
    files = {path.stem for path in (ROOT / "gpufleet/cli/commands").glob("*.py")} - {"__init__"}
    assert files == {entry.module for entry in COMMANDS.values()}


def test_no_words_at_all_show_the_help() -> None:
    assert gpufleet().out == gpufleet("--help").out


def test_no_summary_is_cut_in_the_list() -> None:
    listing = gpufleet("--help").out
    assert all(entry.summary in listing for entry in COMMANDS.values())


def test_version() -> None:
    assert gpufleet("--version").out == f"gpufleet {__version__}\n"


def test_an_unknown_command_is_met_with_the_nearest_one() -> None:
    result = gpufleet("plam")
    assert result.code == 2
    assert "Did you mean 'plan'" in result.err
    assert result.out == ""


def test_shell_completion_offers_the_commands() -> None:
    result = gpufleet(env={"_GPUFLEET_COMPLETE": "complete_bash", "COMP_WORDS": "gpufleet st", "COMP_CWORD": "1"})
    assert result.out.split() == ["status"]


def test_the_reference_in_the_docs_is_current() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs/generate_cli.py", "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_exit_code_of_an_error_class_is_documented() -> None:
    from gpufleet import errors

    text = (ROOT / "docs/exit-codes.md").read_text(encoding="utf-8")
    classes = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, errors.GpufleetError)]
    for error in classes:
        assert f"| {error.exit_code} |" in text
