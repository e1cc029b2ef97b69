"""What a fleet file may set on the mock market."""

from __future__ import annotations

import ipaddress
import sys
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gpufleet.providers.adapter import Options

KINDS: dict[str, tuple[str, ...]] = {
    "whoami": ("transient", "429", "auth", "other-account"),
    "offers": ("transient", "429", "auth"),
    "create": (
        "capacity",
        "quota",
        "payment",
        "auth",
        "429",
        "not-sent",
        "price-change",
        "hang",
        "lost-answer",
        "error-500",
        "error-500-after-create",
        "double",
        "id-in-error",
        "dearer",
        "volume-left",
    ),
    "get": ("transient", "429", "unknown-state", "lag"),
    "inventory": ("transient", "429", "partial", "empty", "lag", "unknown-state", "duplicate"),
    "clusters": ("transient", "429", "partial", "empty"),
    "terminate": ("error-500", "429", "ok-but-running", "ignored", "not-yet"),
    "keys": ("transient", "429", "lost-answer"),
    "extras": ("transient", "429", "partial"),
    "delete": ("error-500", "429", "ignored", "not-yet"),
    "boot": (
        "slow",
        "never",
        "dead",
        "stopped",
        "no-capacity",
        "bad-gpu",
        "old-driver",
        "small-disk",
        "host-key-change",
    ),
    "run": ("preemption", "bad-gpu", "old-driver", "small-disk", "host-key-change"),
}
"""Which faults exist at which moment. Those not named after the error they raise:

whoami: ``other-account`` answers for somebody else.
create (of clusters too): ``lost-answer``, ``error-500-after-create``, ``id-in-error`` and ``double`` rent (``double``
twice, though no cluster) and raise AmbiguousOutcome, ``id-in-error`` with the id; ``error-500`` raises it and rents
nothing; ``hang`` rents and answers late; ``price-change`` raises the price by half; ``dearer`` rents at such a price
whatever the request's limit; ``volume-left`` has made the disk when it finds that the quota is reached.
get: ``lag`` knows nothing of a fresh instance, neither to read nor to end it.
inventory: ``partial`` is a ProtocolError; ``empty`` lies that there is nothing; ``lag`` hides a fresh instance or
cluster; ``duplicate`` lists everything twice.
terminate (of clusters too), delete (of volumes and keys): ``ok-but-running`` begins the end late; ``ignored`` says yes
and does nothing; ``not-yet`` refuses.
boot: ``dead`` runs, but SSH never answers; ``host-key-change`` shows another key than the market tells; ``stopped`` is
made and never started; ``no-capacity`` fails after it was accepted, and bills until it is terminated.
run: ``preemption`` ends the node's processes, and the meter goes on until terminate, as real markets do with the disk;
``host-key-change`` reboots it with a new key.
"""


class Fault(Options):
    """One thing that goes wrong. Counted on disk, so that a run in many processes has it ``times`` times in all."""

    at: Literal[
        "whoami",
        "offers",
        "create",
        "get",
        "inventory",
        "clusters",
        "terminate",
        "keys",
        "extras",
        "delete",
        "boot",
        "run",
        "machine",
    ]
    """``machine`` passes ``kind`` on to the node's stand-in programs as it is."""
    kind: Annotated[str, BeforeValidator(str)]
    node: str | None = None
    """Only calls that concern this node, e.g. ``decode/0``."""
    nth: int | None = Field(default=None, ge=1)
    """Only the n-th such call since the market began; for ``boot``, ``run``, ``machine``, ``lag`` the n-th create."""
    times: int = Field(default=1, ge=1)
    chance: float = Field(default=1.0, gt=0, le=1)
    """Share of matching calls that it hits, drawn from the seed: the same run has the same faults."""
    after: float | None = Field(default=None, ge=0)
    """Simulated seconds: how long it lasts, or how long after boot it comes."""
    retry_after: float | None = Field(default=None, ge=0)
    """Seconds that a 429 asks to wait; left out, it does not say."""

    @model_validator(mode="after")
    def _known(self) -> Fault:
        allowed = KINDS.get(self.at)
        if allowed and self.kind not in allowed:
            raise ValueError(f"'{self.kind}' is not a fault at '{self.at}'; these are: {', '.join(allowed)}")
        return self


class Pace(Options):
    """How fast the stand-ins work; tokens per second, simulated seconds, gigabits per second. None: the node's own."""

    prefill_tps: float | None = Field(default=None, gt=0)
    decode_tps: float | None = Field(default=None, gt=0)
    native_tps: float | None = Field(default=None, gt=0)
    load_seconds: float | None = Field(default=None, ge=0)
    download_gbps: float | None = Field(default=None, gt=0)
    pull_gbps: float | None = Field(default=None, gt=0)
    convert_seconds: float | None = Field(default=None, ge=0)
    weights_files: int | None = Field(default=None, ge=1)
    pip_seconds: float | None = Field(default=None, ge=0)


def _loopback(value: str) -> str:
    if not ipaddress.IPv4Network(value).subnet_of(ipaddress.IPv4Network("127.0.0.0/8")):
        raise ValueError("nodes of the mock live on loopback: a network inside 127.0.0.0/8")
    return value


class MockOptions(Options):
    """Options of ``kind: mock``."""

    directory: str | None = None
    """Where the market lives; default: ``mock`` in the state directory."""
    time_scale: float = Field(default=1.0, gt=0, le=1_000_000, allow_inf_nan=False)
    """Simulated seconds per real second. Scales delays; money runs on the real clock."""
    seed: int = 0
    faults: tuple[Fault, ...] = ()
    pace: Pace = Pace()
    catalog: str | None = None
    """Another price list (YAML); default: the shipped one."""
    prices: dict[str, Annotated[Decimal, Field(gt=0, allow_inf_nan=False)]] = Field(default_factory=dict)
    """USD per node-hour by offer id, over the price list."""
    stock: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    """By offer id, over the price list."""
    network: Annotated[str, AfterValidator(_loopback)] = "127.64.0.0/16"
    ssh_port: int = Field(default=2222, ge=1, le=65535)
    account: str = ""
    """Whose credentials these are; other accounts share the stock, and see nothing of this one."""
    ownership: Literal["name", "none"] = "name"
    """``none``: it keeps no name of ours."""
    runtime: Literal["docker", "inside"] = "docker"
    """``inside``: a rental is a container of the image that the request names, and has no docker."""
    volumes: bool = False
    """Every instance, and every cluster, is made with a disk that outlives it and bills until it is deleted."""
    ssh_keys: bool = False
    """A public key must be uploaded before an instance can be made with it."""
    clusters: bool = False
    """It has the price list's clusters too."""
    idempotent_create: bool = False
    """A second create with the same key returns the first instance; off, it rents another one."""
    refuse_early_terminate: bool = False
    """A node that is still provisioning cannot be terminated."""
    terminating_seconds: float = Field(default=20.0, ge=0)
    """Simulated seconds from a terminate call to the end of the meter."""
    forget_seconds: float = Field(default=600.0, ge=0)
    """Real seconds for which a terminated instance stays in listings."""
    node_command: tuple[str, ...] = (sys.executable, "-m", "gpufleet.twin.node")
    """What runs as the node; its root directory is added."""
