"""Small value types of the fleet file and how they are read from text."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from gpufleet.domain.market import GpuShape
from gpufleet.errors import InvalidFleet

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_FLEET_NAME = re.compile(r"[a-z][a-z0-9-]{0,23}")


@dataclass(frozen=True)
class SecretRef:
    """Where a secret is kept: ``env:NAME`` or ``file:PATH``. The value itself never stands in the fleet file."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def parse(cls, value: Any) -> SecretRef:
        """Read a reference; anything else is taken for a literal secret and refused without repeating it."""
        if isinstance(value, cls):
            return value
        kind, colon, name = str(value).partition(":")
        if not colon or kind not in {"env", "file"} or not name:
            raise ValueError(
                "a secret must be a reference, env:NAME or file:PATH; never write the value here"
            )
        return cls(kind, name)

    def path(self, base: Path) -> Path:
        """The file of a ``file:`` reference; relative paths start at the fleet file's folder."""
        return base / Path(self.name).expanduser()

    def read(self, base: Path) -> str:
        """The secret's value, stripped.

        Raises:
            InvalidFleet: when the variable or file is missing or empty.
        """
        if self.kind == "env":
            value = os.environ.get(self.name, "")
            if not value.strip():
                raise InvalidFleet(f"secret {self} is not set", hint=f"export {self.name}=...")
            return value.strip()
        path = self.path(base)
        try:
            value = path.read_text(encoding="utf-8")
        except OSError as error:
            raise InvalidFleet(f"secret {self} cannot be read: {error.strerror}", where=str(path)) from error
        if not value.strip():
            raise InvalidFleet(f"secret {self} is empty", where=str(path))
        return value.strip()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "pattern": "^(env|file):.+$"}


def parse_duration(value: Any) -> timedelta:
    """``90s``, ``15m``, ``8h``, ``2d``."""
    if isinstance(value, timedelta):
        return value
    match = re.fullmatch(r"(\d+)([smhd])", str(value).strip())
    if not match:
        raise ValueError("a duration is a whole number and a unit: 90s, 15m, 8h, 2d")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def parse_shape(value: Any) -> GpuShape:
    """``B200:8``."""
    if isinstance(value, GpuShape):
        return value
    model, colon, count = str(value).partition(":")
    if not model or not colon or not count.isdecimal() or int(count) < 1:
        raise ValueError("a GPU shape is model:count, e.g. B200:8")
    return GpuShape(model.upper(), int(count))


def check_fleet_name(value: str) -> str:
    """Lower-case letters, digits and dashes: the name goes into keys, labels and host names."""
    if not _FLEET_NAME.fullmatch(value):
        raise ValueError("a fleet name is 1 to 24 of a-z, 0-9 and -, and starts with a letter")
    return value


def split_listen(value: str) -> tuple[str, int]:
    """``host:port`` -> its parts; IPv6 in brackets."""
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ValueError("an address is host:port, e.g. 127.0.0.1:8080")
    return host.strip("[]"), int(port)


def check_listen(value: str) -> str:
    """An IP address and a port."""
    host, _ = split_listen(value)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(
            f"'{host}' is not an IP address to listen on (use 0.0.0.0 for every interface)"
        ) from None
    return value
