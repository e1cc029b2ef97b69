"""Where the fleet file is found among the words of a command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.cli.commands.exec import shell_line
from gpufleet.cli.commands.logs import lines
from gpufleet.cli.options import fleet_file, split_arguments
from gpufleet.cli.work import node_of, nodes_of
from gpufleet.domain.nodes import NodeName
from gpufleet.errors import InvalidFleet, UsageError
from gpufleet.spec.load import load_fleet

FLEET = load_fleet(Path(__file__).parents[2] / "examples/quickstart.yaml").fleet


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GPUFLEET_FILE", raising=False)


def test_the_first_argument_beats_the_environment_and_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("fleet.yaml").touch()
    assert fleet_file(None) == Path("fleet.yaml")
    monkeypatch.setenv("GPUFLEET_FILE", "env.yaml")
    assert fleet_file(None) == Path("env.yaml")
    assert fleet_file(Path("arg.yaml")) == Path("arg.yaml")
    assert fleet_file(None, Path("option.yaml")) == Path("option.yaml")


def test_a_fleet_file_is_named_once() -> None:
    with pytest.raises(UsageError, match=r"a\.yaml and b\.yaml"):
        fleet_file(Path("a.yaml"), Path("b.yaml"))


def test_without_any_fleet_file_the_next_command_is_named() -> None:
    with pytest.raises(InvalidFleet) as caught:
        fleet_file(None)
    assert caught.value.hint is not None
    assert "gpufleet init" in caught.value.hint


def test_a_first_word_that_ends_in_yaml_is_the_fleet_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUFLEET_FILE", "env.yaml")
    assert split_arguments(["a.yaml", "decode/0"]) == (Path("a.yaml"), ["decode/0"])
    assert split_arguments(["a.yml", "hi"]) == (Path("a.yml"), ["hi"])
    assert split_arguments(["decode/0"]) == (Path("env.yaml"), ["decode/0"])
    assert split_arguments(None) == (Path("env.yaml"), [])


def test_with_the_option_a_word_that_ends_in_yaml_is_just_a_word() -> None:
    assert split_arguments(["explain fleet.yaml"], Path("a.yaml")) == (Path("a.yaml"), ["explain fleet.yaml"])


def test_a_sentence_that_ends_in_yaml_is_no_fleet_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUFLEET_FILE", "env.yaml")
    assert split_arguments(["explain fleet.yaml"]) == (Path("env.yaml"), ["explain fleet.yaml"])


def test_a_target_is_a_node_a_pool_or_all() -> None:
    assert nodes_of(FLEET, "decode/1") == [NodeName("decode", 1)]
    assert nodes_of(FLEET, "prefill") == [NodeName("prefill", 0), NodeName("prefill", 1)]
    assert nodes_of(FLEET, "all") == FLEET.nodes()


@pytest.mark.parametrize("text", ["decode/7", "decod/0", "decode/", "", "decode", "decode/0 ", "../x/0"])
def test_an_unknown_node_is_answered_with_the_ones_there_are(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        node_of(FLEET, text)
    assert caught.value.hint is not None
    assert "decode/" in caught.value.hint


def test_one_word_is_a_shell_line_and_several_are_one_command() -> None:
    assert shell_line(["ls | wc -l"]) == "ls | wc -l"
    assert shell_line(["echo", "a b", "$HOME"]) == "echo 'a b' '$HOME'"


def test_log_lines_are_whole_wherever_the_chunks_end() -> None:
    assert list(lines(iter([b"a", b"b\nc\xc3", b"\xa4\n", b"\xff"]))) == ["ab", "cä", "�"]
