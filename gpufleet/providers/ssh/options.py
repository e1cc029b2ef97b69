"""The inventory of hosts, as the fleet file or a file of its own lists them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, model_validator

from gpufleet.domain.market import WORKDIR, GpuShape
from gpufleet.errors import InvalidFleet
from gpufleet.providers.adapter import Options, read_options
from gpufleet.spec.values import SecretRef, parse_shape

_NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,62})(\.[A-Za-z0-9-]{1,63})*\.?")
_USER = re.compile(r"[a-z_][a-z0-9_.-]{0,31}", re.IGNORECASE)
_HOST_KEY = re.compile(r"(ssh-[a-z0-9-]+|ecdsa-[a-z0-9-]+) [A-Za-z0-9+/]+={0,2}")


def check_host(value: str) -> str:
    """A host name or an IP address; IPv6 without brackets."""
    if "://" in value or "/" in value:
        raise ValueError("write the host alone, without a scheme or path")
    if "[" in value or "]" in value:
        raise ValueError("write an IPv6 address without brackets")
    if "@" in value:
        raise ValueError("the user goes into its own key, 'user'")
    if ":" in value and not _is_ip(value):
        raise ValueError("the port goes into its own key, 'port'")
    if not _is_ip(value) and (not _NAME.fullmatch(value) or re.fullmatch(r"[\d.]+", value)):
        raise ValueError("this is not a host name or an IP address")
    return value


def _check_user(value: str) -> str:
    if not _USER.fullmatch(value):
        raise ValueError("this is not a user name")
    return value


def _check_workdir(value: str) -> str:
    if not value.startswith("/") or value == "/" or "\n" in value:
        raise ValueError("the working directory is an absolute path on the host")
    return value.rstrip("/")


def _check_ip(value: str) -> str:
    if not _is_ip(value):
        raise ValueError("this is not an IP address")
    return value


def _check_host_key(value: str) -> str:
    key = " ".join(value.split()[:2])
    if not _HOST_KEY.fullmatch(key):
        raise ValueError("a host key is written 'ssh-ed25519 AAAA...', as in known_hosts after the host")
    return key


def _check_key(value: SecretRef) -> SecretRef:
    if value.kind != "file":
        raise ValueError("a login key is a file: file:PATH")
    return value


def _is_ip(value: str) -> bool:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return False
    return True


class Host(Options):
    """One host."""

    host: Annotated[str, AfterValidator(check_host)]
    gpu: Annotated[GpuShape, BeforeValidator(parse_shape), PlainSerializer(str)]
    port: int = Field(default=22, ge=1, le=65535)
    user: Annotated[str, AfterValidator(_check_user)] = "root"
    key: Annotated[SecretRef, AfterValidator(_check_key)] | None = None
    """``file:PATH`` of the private key that logs in; left out, the fleet's own must be in authorized_keys."""
    host_key: Annotated[str, AfterValidator(_check_host_key)] | None = None
    """``ssh-ed25519 AAAA...``; left out, the first key seen is pinned."""
    workdir: Annotated[str, AfterValidator(_check_workdir)] = WORKDIR
    private_ip: Annotated[str, AfterValidator(_check_ip)] | None = None
    """Where the other nodes reach it; default: ``host`` if that is an address."""
    usd_per_hour: Annotated[Decimal, Field(ge=0, allow_inf_nan=False)] = Decimal(0)
    region: str = ""
    rdma: Literal["ib", "roce", "none"] | None = None
    vram_gb: int | None = Field(default=None, ge=0)
    """Of one GPU; default: what the catalog says of the model."""
    ram_gb: int | None = Field(default=None, ge=1)
    disk_gb: int | None = Field(default=None, ge=1)

    @property
    def host_id(self) -> str:
        """``host:port``: one machine, whatever else is said of it."""
        return f"{self.host}:{self.port}"

    @property
    def address(self) -> str | None:
        """Where the other nodes reach it, None when unknown."""
        return self.private_ip or (self.host if _is_ip(self.host) else None)


class SshOptions(Options):
    """Options of ``kind: ssh``: the hosts, here or in a file."""

    hosts: tuple[Host, ...] = ()
    inventory: str | None = None
    """YAML file with ``hosts:`` as its only key."""

    @model_validator(mode="after")
    def _one_list(self) -> SshOptions:
        if bool(self.hosts) == bool(self.inventory):
            raise ValueError("give 'hosts' or 'inventory', one of the two")
        known = [host.host_id for host in self.hosts]
        if twice := next((name for name in known if known.count(name) > 1), None):
            raise ValueError(f"host {twice} is listed twice")
        return self


def hosts_of(options: SshOptions, *, fleet_dir: Path, provider: str) -> Sequence[Host]:
    """The hosts, read from the inventory file where one is named.

    Raises:
        InvalidFleet: the file is missing or wrong.
    """
    if options.inventory is None:
        return options.hosts
    path = fleet_dir / Path(options.inventory).expanduser()
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidFleet("the inventory file cannot be read", where=str(path)) from error
    if not isinstance(content, dict) or set(content) != {"hosts"}:
        raise InvalidFleet("an inventory file has one key, 'hosts', with a list", where=str(path))
    return read_options(SshOptions, content, provider=f"{provider} ({path.name})").hosts
