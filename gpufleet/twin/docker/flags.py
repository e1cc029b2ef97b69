"""docker's command line: known flags only, in docker's spelling, refused in docker's words."""

from __future__ import annotations

from gpufleet.twin.docker.errors import DockerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

SWITCH, VALUE, LIST = "switch", "value", "list"


class Command:
    """The flags of one subcommand.

    Args:
        name: ``run`` or ``image inspect``.
        switches, values, lists: flags written ``"--detach -d"``, one string per flag; the first name is its key.
        own_arguments: the first plain word ends the flags (``run``, ``exec``).
    """

    def __init__(
        self, name: str, *, switches: str = "", values: str = "", lists: str = "", own_arguments: bool = False
    ) -> None:
        self.name = name
        self._flags: dict[str, tuple[str, str]] = {}
        self._own_arguments = own_arguments
        self._empty: dict[str, Any] = {}
        for kind, text in ((SWITCH, switches), (VALUE, values), (LIST, lists)):
            for entry in text.split():
                names = entry.split("/")
                key = names[0].removeprefix("--")
                self._empty[key] = {SWITCH: False, VALUE: "", LIST: []}[kind]
                self._flags |= dict.fromkeys(names, (kind, key))

    def parse(self, argv: list[str]) -> tuple[dict[str, Any], list[str]]:
        """Values by flag name, and the plain words.

        Raises:
            DockerError: a flag that this command does not have (exit status 125).
        """
        options = {key: list(value) if isinstance(value, list) else value for key, value in self._empty.items()}
        words: list[str] = []
        queue = list(argv)
        while queue:
            word = queue.pop(0)
            if word == "--":
                words += queue
                break
            if word == "-" or not word.startswith("-"):
                words.append(word)
                if self._own_arguments:
                    words += queue
                    break
            elif word.startswith("--"):
                self._long(word, queue, options)
            else:
                self._short(word, queue, options)
        return options, words

    def _long(self, word: str, queue: list[str], options: dict[str, Any]) -> None:
        flag, equals, value = word.partition("=")
        if flag not in self._flags:
            raise self.misuse(f"unknown flag: {flag}")
        kind, key = self._flags[flag]
        if kind == SWITCH:
            if value not in ("", "true", "false", "1", "0"):
                raise self.misuse(f'invalid argument "{value}" for "{flag}" flag: strconv.ParseBool: invalid syntax')
            options[key] = value not in ("false", "0")
        else:
            self._store(flag, value if equals else self._next(flag, queue), options)

    def _short(self, word: str, queue: list[str], options: dict[str, Any]) -> None:
        letters = word[1:]
        while letters:
            flag, letters = f"-{letters[0]}", letters[1:]
            if flag not in self._flags:
                raise self.misuse(f"unknown shorthand flag: '{flag[1]}' in {word}")
            kind, key = self._flags[flag]
            if kind == SWITCH:
                options[key] = True
            else:
                self._store(flag, letters.removeprefix("=") if letters else self._next(flag, queue), options)
                return

    def _next(self, flag: str, queue: list[str]) -> str:
        if not queue:
            named = flag if flag.startswith("--") else f"'{flag[1]}' in {flag}"
            raise self.misuse(f"flag needs an argument: {named}")
        return queue.pop(0)

    def _store(self, flag: str, value: str, options: dict[str, Any]) -> None:
        kind, key = self._flags[flag]
        if kind == LIST:
            options[key].append(value)
        else:
            options[key] = value

    def misuse(self, message: str) -> DockerError:
        """The error for a wrong command line."""
        usage = f"Usage:  docker {self.name} [OPTIONS]\n\nRun 'docker {self.name} --help' for more information"
        return DockerError(f"{message}\n\n{usage}", 125)

    def exactly(self, words: list[str], count: int) -> None:
        """Refuse another number of plain words."""
        if len(words) != count:
            raise DockerError(f"docker: 'docker {self.name}' requires {count} argument{'s' if count > 1 else ''}", 1)

    def at_least(self, words: list[str], count: int) -> None:
        """Refuse fewer plain words."""
        if len(words) < count:
            raise DockerError(
                f"docker: 'docker {self.name}' requires at least {count} argument{'s' if count > 1 else ''}", 1
            )


def pairs(entries: list[str], env: Mapping[str, str]) -> dict[str, str]:
    """``KEY=VALUE`` entries; a bare ``KEY`` is taken from ``env``, and dropped when it is not there."""
    found: dict[str, str] = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if equals:
            found[key] = value
        elif key in env:
            found[key] = env[key]
    return found
