"""The fleet file as types. Unknown keys are refused everywhere; every field says its unit in its name or its type.

Only shapes and single-field rules live here. What needs several fields or the catalog is in `gpufleet.spec.checks`;
reading the file, line numbers and messages are in `gpufleet.spec.load`.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from gpufleet.domain.market import GpuShape
from gpufleet.domain.nodes import NodeName, Role
from gpufleet.spec.values import (
    SecretRef,
    check_fleet_name,
    check_listen,
    parse_duration,
    parse_shape,
)

Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
"""``90s``, ``15m``, ``8h``, ``2d``."""
Shape = Annotated[GpuShape, BeforeValidator(parse_shape)]
"""``B200:8``."""
Usd = Annotated[Decimal, Field(gt=0, allow_inf_nan=False)]


class Strict(BaseModel):
    """Base of every section: frozen, and a key it does not know is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, arbitrary_types_allowed=True
    )


class ProviderUse(BaseModel):
    """``provider: mock`` or ``provider: {use: mock, time_scale: 60}``. Options are checked by the adapter itself."""

    model_config = ConfigDict(frozen=True, extra="allow")
    use: str

    @property
    def options(self) -> dict[str, Any]:
        """Everything beside ``use``."""
        return dict(self.model_extra or {})


class Model(Strict):
    """What is served."""

    id: str = "zai-org/GLM-5.1-FP8"
    """Hugging Face repository."""
    profile: Literal["glm5"] = "glm5"
    """TileRT's model profile."""
    revision: str = "main"
    """Commit, tag or branch of the repository; `gpufleet.lock.yaml` records the commit it resolved to."""
    served_name: str = "glm5"
    """The ``model`` that callers name."""
    max_seq_len: int = Field(default=202_752, ge=1024)
    """Tokens of prompt and answer together; the same on every role."""
    hf_token: SecretRef | None = None


class Versions(Strict):
    """The set seen working together (docs/architecture.md says where)."""

    vllm: str = "0.26.0"
    tilert: str = "0.1.6.post3"
    nixl: str = "1.3.1"
    transformers: str = "5.4.0"
    vllm_image: str = "vllm/vllm-openai:v0.26.0"
    tilert_image: str = "ghcr.io/tile-ai/tilert:cu132-latest"


class Engine(Strict):
    """Launch settings of one pool. Left out, they agree by construction; set apart, `validate` compares them."""

    tensor_parallel: int = Field(default=8, ge=1)
    senders: int | None = None
    """TILERT_PD_SENDERS; defaults to the prefill's tensor_parallel."""
    kv_cache_dtype: Literal["fp8", "bf16"] = "fp8"
    transport: Literal["nixl", "mooncake"] = "nixl"
    max_seq_len: int | None = None
    """Defaults to model.max_seq_len."""
    mtp: bool = True
    gpu_memory_utilization: float = Field(default=0.75, gt=0, le=1)
    decode_poll_ms: int = Field(default=10, ge=0, le=1000)
    """TILERT_DECODE_POLL_MS: how often a stream is flushed; 200 is TileRT's default and comes in bursts."""
    extra_args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)


class Pool(Strict):
    """Nodes of one role and one hardware shape."""

    role: Role | None = None
    """Defaults to the pool's name."""
    gpu: Shape
    count: int = Field(ge=0, le=512)
    provider: ProviderUse | None = None
    """Defaults to the fleet's."""
    region: str | None = None
    max_usd_per_hour: Usd | None = None
    """Above this price for one node nothing is rented."""
    disk_gb: int | None = Field(default=None, ge=1)
    """Defaults to what the role needs (`gpufleet.catalog`)."""
    engine: Engine = Engine()


class RequestClass(StrEnum):
    """How a channel's requests are served."""

    INTERACTIVE = "interactive"
    """TileRT first, one request at a time per cell; spills to native."""
    BATCH = "batch"
    """vLLM's own decode pool."""


class Channel(Strict):
    """A class of callers with a key."""

    request_class: RequestClass = Field(alias="class")
    key: SecretRef
    priority: int = Field(default=0, ge=-100, le=100)
    """Higher overtakes lower in the queue."""


class Tls(Strict):
    """The user's own certificate; left out, a self-signed one is made and its fingerprint shown."""

    certificate: SecretRef
    """PEM file with the chain."""
    key: SecretRef


class Router(Strict):
    """The front door: HAProxy."""

    host: str = "local"
    """``local`` (this machine) or a node name such as ``prefill/0``."""
    listen: Annotated[str, AfterValidator(check_listen)] = "127.0.0.1:8080"
    tls: Tls | None = None
    insecure: bool = False
    """Allow plain HTTP on an address that is not loopback."""
    spill_queue: int = Field(default=4, ge=0)
    """Interactive requests waiting per fleet above which further ones go to native."""
    queue_timeout: Duration = timedelta(minutes=30)
    without_max_tokens: Literal["native", "tilert"] = "native"
    """Where interactive requests go that name no max_tokens: TileRT's router would cut their answer at 256 tokens."""
    channels: dict[str, Channel] = Field(min_length=1)


class Network(Strict):
    """What lies between the nodes."""

    rdma: Literal["required", "preferred", "off"] = "preferred"
    devices: str | None = None
    """UCX_NET_DEVICES; left out, active RDMA ports are found on the node."""


class Budget(Strict):
    """Limits; `plan` refuses what goes above them."""

    max_usd_per_hour: Usd | None = None
    max_usd_total: Usd | None = None
    ttl: Duration | None = None
    """Latest end of every rental, counted from its creation."""


class Fleet(Strict):
    """The whole file."""

    name: Annotated[str, AfterValidator(check_fleet_name)]
    provider: Annotated[ProviderUse, BeforeValidator(lambda v: {"use": v} if isinstance(v, str) else v)]
    model: Model = Model()
    versions: Versions = Versions()
    pools: dict[str, Pool] = Field(min_length=1)
    network: Network = Network()
    router: Router
    budget: Budget = Budget()
    lock: dict[str, Any] | None = None
    """Written by `up` into the lock file: what this fleet resolved to."""

    def role_of(self, pool: str) -> Role:
        """The role of a pool: its own, or that of its name."""
        return self.pools[pool].role or Role(pool)

    def pools_of(self, role: Role) -> list[str]:
        """Names of the pools that play this role, in file order."""
        return [name for name in self.pools if self.role_of(name) is role]

    def nodes(self) -> list[NodeName]:
        """Every node the file asks for, in file order."""
        return [NodeName(name, i) for name, pool in self.pools.items() for i in range(pool.count)]

    def nodes_of(self, role: Role) -> list[NodeName]:
        """Every node of a role, in file order."""
        return [NodeName(name, i) for name in self.pools_of(role) for i in range(self.pools[name].count)]

    def provider_of(self, pool: str) -> ProviderUse:
        """Where a pool's nodes are rented."""
        return self.pools[pool].provider or self.provider
