"""One JSON file that several processes change: a kernel lock around each change, replaced atomically.

The lock dies with its holder, and a reader sees the old text or the new one, so a process may be killed at any point.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from gpufleet.providers.errors import ProtocolError

ModelT = TypeVar("ModelT", bound=BaseModel)


class Document(Generic[ModelT]):
    """A file that holds one pydantic model."""

    def __init__(self, path: Path, model: type[ModelT]) -> None:
        self.path = path
        self._model = model

    @contextmanager
    def locked(self) -> Iterator[ModelT]:
        """The content, while nobody else may change it. Changes count only after `save`.

        Raises:
            ProtocolError: the file does not hold what it should.
        """
        with self._told():
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield self._read()
        finally:
            os.close(descriptor)

    def save(self, content: ModelT) -> None:
        """Replace the file. Only inside `locked`.

        Raises:
            ProtocolError: it cannot be written.
        """
        draft = self.path.with_suffix(".new")
        with self._told():
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(content.model_dump_json(indent=1))
            draft.replace(self.path)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ProtocolError(f"{self.path} cannot be written: {error.strerror}") from error

    def _read(self) -> ModelT:
        try:
            return self._model.model_validate_json(self.path.read_bytes())
        except FileNotFoundError:
            return self._model()
        except ValidationError as error:
            raise ProtocolError(
                f"{self.path.name} does not hold what it should",
                where=str(self.path),
                hint="it was edited or damaged; move it away only when nothing in it still runs",
            ) from error
