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
_NAME = r"[a-z](?:[a-z0-9-]*[a-z0-9])?"
_SECRET_BYTES = 64 * 1024
DURATION_PATTERN = r"^[1-9][0-9]{0,8}[smhd]$"
_LONGEST = timedelta(days=3650)
SHAPE_PATTERN = r"^[A-Za-z][A-Za-z0-9]{0,31}:[1-9][0-9]?$"
REFERENCE_PATTERN = r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:[^\x00-\x1f]+)$"


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
        if not isinstance(value, str) or not re.fullmatch(REFERENCE_PATTERN, value):
            raise ValueError("a secret must be a reference, env:NAME or file:PATH; never write the value here")
        kind, _, name = value.partition(":")
        return cls(kind, name)

    def path(self, base: Path) -> Path:
        """The file of a ``file:`` reference; relative paths start at the fleet file's folder."""
        return base / os.path.expanduser(self.name)  # noqa: PTH111 - Path.expanduser raises for an unknown ~user

    def read(self, base: Path) -> str:
        """The secret's value, stripped.

        Raises:
            InvalidFleet: when the variable or file is missing, empty, larger than 64 KB or not UTF-8.
        """
        if self.kind == "env":
            value = os.environ.get(self.name, "")
            if not value.strip():
                raise InvalidFleet(f"secret {self} is not set", hint=f"export {self.name}=...")
            return value.strip()
        path = self.path(base)
        try:
            with path.open("rb") as file:
                value = file.read(_SECRET_BYTES + 1).decode("utf-8")
        except OSError as error:
            raise InvalidFleet(f"secret {self} cannot be read: {error.strerror}", where=str(path)) from error
        except UnicodeDecodeError:
            raise InvalidFleet(f"secret {self} is not text in UTF-8", where=str(path)) from None
        if len(value) > _SECRET_BYTES:
            raise InvalidFleet(f"secret {self} is larger than 64 KB", where=str(path))
        if not value.strip():
            raise InvalidFleet(f"secret {self} is empty", where=str(path))
        return value.strip()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "pattern": REFERENCE_PATTERN, "examples": ["env:NAME", "file:secrets/chat.key"]}


def parse_duration(value: Any) -> timedelta:
    """``90s``, ``15m``, ``8h``, ``2d``; whole seconds, at least one, at most ten years."""
    if isinstance(value, str) and re.fullmatch(DURATION_PATTERN, value):
        value = timedelta(**{_UNITS[value[-1]]: int(value[:-1])})
    if not isinstance(value, timedelta) or value < timedelta(seconds=1) or value.microseconds:
        raise ValueError("a duration is a whole number above 0 and a unit: 90s, 15m, 8h, 2d")
    if value > _LONGEST:
        raise ValueError(f"a duration is at most {_LONGEST.days}d")
    return value


def format_duration(value: timedelta) -> str:
    """The shortest text that `parse_duration` reads back as the same time, in the largest unit without a remainder."""
    seconds = int(value.total_seconds())
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def parse_shape(value: Any) -> GpuShape:
    """``B200:8``."""
    if isinstance(value, GpuShape):
        return value
    if not isinstance(value, str) or not re.fullmatch(SHAPE_PATTERN, value):
        raise ValueError("a GPU shape is model:count, e.g. B200:8")
    model, _, count = value.partition(":")
    return GpuShape(model.upper(), int(count))


def check_fleet_name(value: str) -> str:
    """Lower-case letters, digits and dashes: the name goes into keys, labels and host names."""
    return _check_name(value, "a fleet name", longest=24)


def check_pool_name(value: str) -> str:
    """Lower-case letters, digits and dashes: the name goes into node names, keys and container names."""
    return _check_name(value, "a pool name", longest=16)


def check_channel_name(value: str) -> str:
    """Lower-case letters, digits and dashes: the name goes into haproxy.cfg."""
    return _check_name(value, "a channel name", longest=24)


def check_provider_name(value: str) -> str:
    """The name of a file in a ``providers`` folder, without ``.yaml``."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", value):
        raise ValueError("a provider's name is made of letters, digits, '.', '_' and '-'")
    return value


def check_word(value: str) -> str:
    """One word that is safe as an argument of a command: no spaces, no control characters, no leading dash."""
    if not value or value.startswith("-") or not value.isprintable() or any(c.isspace() for c in value):
        raise ValueError("must be one word without spaces that does not start with a dash")
    return value


def check_store(value: str) -> str:
    """``s3://bucket/prefix`` or an absolute directory."""
    if re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._-]+)*/?", value):
        return value
    if re.fullmatch(r"(/[A-Za-z0-9._-]+)+/?", value) and ".." not in value.split("/"):
        return value
    raise ValueError("a store is s3://bucket/prefix or an absolute directory, of letters, digits, '.', '_' and '-'")


def check_endpoint(value: str) -> str:
    """``https://host[:port]``; plain http only on a loopback or private address."""
    if match := re.fullmatch(r"(https?)://([A-Za-z0-9.-]+)(:[0-9]{1,5})?/?", value):
        if match[1] == "https" or _is_private(match[2]):
            return value.rstrip("/")
        raise ValueError("http would send the weights and the signed requests in the clear; use https")
    raise ValueError("an endpoint is https://host or https://host:port")


def _is_private(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return host == "localhost"


def split_listen(value: str) -> tuple[str, int]:
    """``host:port`` -> its parts; IPv6 in brackets."""
    host, colon, port = value.rpartition(":")
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise ValueError("an address is host:port, e.g. 127.0.0.1:8080")
    return host.strip("[]"), int(port)


def check_listen(value: str) -> str:
    """An IP address and a port."""
    host, _ = split_listen(value)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(f"'{host}' is not an IP address to listen on (use 0.0.0.0 for every interface)") from None
    return value


def _check_name(value: str, what: str, *, longest: int) -> str:
    if len(value) > longest or not re.fullmatch(_NAME, value):
        raise ValueError(f"{what} is 1 to {longest} of a-z, 0-9 and -, starts with a letter and ends with no dash")
    return value
