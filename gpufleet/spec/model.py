"""The fleet file as types. Unknown keys are refused everywhere; every field says its unit in its name or its type.

Only shapes and single-field rules live here. What needs several fields or the catalog is in `gpufleet.spec.checks`;
reading the file, line numbers and messages are in `gpufleet.spec.load`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema

from gpufleet.domain.market import GpuShape
from gpufleet.domain.nodes import NodeName, Role
from gpufleet.spec.base import Strict
from gpufleet.spec.schedule import Schedule
from gpufleet.spec.values import (
    DURATION_PATTERN,
    SHAPE_PATTERN,
    SecretRef,
    check_channel_name,
    check_endpoint,
    check_fleet_name,
    check_listen,
    check_pool_name,
    check_provider_name,
    check_store,
    check_word,
    format_duration,
    parse_duration,
    parse_shape,
)

Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN, "examples": ["90s", "15m", "8h", "2d"]}),
]
"""``90s``, ``15m``, ``8h``, ``2d``."""
Shape = Annotated[
    GpuShape,
    BeforeValidator(parse_shape),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "pattern": SHAPE_PATTERN, "examples": ["H200:8", "B200:8"]}),
]
"""``B200:8``."""
Usd = Annotated[
    Decimal,
    Field(gt=0, le=1_000_000_000, decimal_places=6, allow_inf_nan=False),
    WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": 1_000_000_000}),
]
Switch = Annotated[
    bool,
    PlainSerializer(lambda on: "on" if on else "off", return_type=str),
    WithJsonSchema({"enum": ["on", "off", True, False]}),
]
"""``on`` or ``off``."""
Word = Annotated[str, AfterValidator(check_word)]
"""Text that becomes one argument of a command."""
SELF_SIGNED = "self-signed"
MOST_NODES = 512
"""Of one pool."""
PoolName = Annotated[str, AfterValidator(check_pool_name)]
ChannelName = Annotated[str, AfterValidator(check_channel_name)]


class ProviderUse(BaseModel):
    """``provider: mock`` or ``provider: {use: mock, time_scale: 60}``. Options are checked by the adapter itself."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)
    use: Annotated[str, AfterValidator(check_provider_name)]
    """Name of a provider file: `providers/<use>.yaml`."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"use": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, handler.resolve_ref_schema(handler(schema))]}

    @property
    def options(self) -> dict[str, Any]:
        """Everything beside ``use``."""
        return dict(self.model_extra or {})


class Model(Strict):
    """What is served."""

    id: Word = "zai-org/GLM-5.1-FP8"
    """Hugging Face repository."""
    profile: Literal["glm5"] = "glm5"
    """TileRT's model profile."""
    revision: Word = "main"
    """Commit, tag or branch of the repository; `gpufleet.lock.yaml` records the commit it resolved to."""
    served_name: Word = "glm5"
    """The ``model`` that callers name."""
    max_seq_len: int = Field(default=202_752, ge=1024)
    """Tokens of prompt and answer together; the same on every role."""
    hf_token: SecretRef | None = None
    """For a repository that is not public."""
    stand_in: bool = False
    """The served model is a stand-in (a tiny model on a CPU, a test): nothing is compared with the catalog's sizes."""


class Weights(Strict):
    """A store for converted weights that outlives the nodes: the conversion is paid for once."""

    store: Annotated[str, AfterValidator(check_store)] | None = None
    """`s3://bucket/prefix`, or an absolute directory that every decode node has mounted. Left out, none."""
    endpoint: Annotated[str, AfterValidator(check_endpoint)] | None = None
    """URL of an S3-compatible store; left out, AWS."""
    region: Word | None = None
    """S3 region."""
    access_key: SecretRef | None = None
    """S3 access key."""
    secret_key: SecretRef | None = None
    """S3 secret key."""


class Versions(Strict):
    """The set seen working together (docs/architecture.md says where)."""

    vllm: Word = "0.26.0"
    """vLLM on prefill and native nodes."""
    tilert: Word = "0.1.6.post3"
    """The tilert wheel; both ends of a hand-over speak its protocol, so it is the same on every role."""
    nixl: Word = "1.3.1"
    """The transfer library of both connectors."""
    transformers: Word = "5.4.0"
    """On decode nodes, for the tokenizer."""
    vllm_image: Word = "vllm/vllm-openai:v0.26.0"
    """Image of prefill and native nodes; its vLLM is `vllm`."""
    tilert_image: Word = "ghcr.io/tile-ai/tilert:cu132-latest"
    """Image of decode nodes and of the weight conversion."""


class Engine(Strict):
    """Launch settings of one pool. Left out, they agree by construction; set apart, `validate` compares them."""

    tensor_parallel: int = Field(default=8, ge=1)
    """GPUs of one node that serve together."""
    senders: int | None = Field(default=None, ge=1)
    """TILERT_PD_SENDERS; defaults to the prefill's tensor_parallel."""
    kv_cache_dtype: Literal["fp8", "bf16"] = "fp8"
    """How the KV cache is stored and handed over."""
    transport: Literal["nixl", "mooncake"] = "nixl"
    """How TileRT's KV cache travels; mooncake works over RDMA only."""
    max_seq_len: int | None = Field(default=None, ge=1024)
    """Defaults to model.max_seq_len."""
    mtp: bool = True
    """Multi-token prediction; glm5 needs it on every role."""
    gpu_memory_utilization: float = Field(default=0.75, gt=0, le=1, allow_inf_nan=False)
    """Share of VRAM that vLLM takes; TileRT's hand-over buffers lie outside it."""
    decode_poll_ms: int = Field(default=10, ge=0, le=1000)
    """TILERT_DECODE_POLL_MS: how often a stream is flushed; 200 is TileRT's default and comes in bursts."""
    extra_args: tuple[str, ...] = ()
    """Further arguments of the server, after those that gpufleet sets."""
    env: dict[str, str] = Field(default_factory=dict)
    """Further environment variables of the server; they show on the node, so no secrets."""


class Pool(Strict):
    """Nodes of one role and one hardware shape."""

    role: Role | None = None
    """Defaults to the pool's name."""
    gpu: Shape
    """What one node has: model and count."""
    count: int = Field(ge=0, le=MOST_NODES)
    """Nodes to rent."""
    provider: ProviderUse | None = None
    """Defaults to the fleet's."""
    region: Word | None = None
    """The provider's name of a region; left out, any."""
    max_usd_per_hour: Usd | None = None
    """Above this price for one node nothing is rented."""
    usd_per_month: Usd | None = None
    """What a month of one node costs on contract, for `gpufleet cost` to compare with."""
    disk_gb: int | None = Field(default=None, ge=1)
    """Defaults to what the role needs (`gpufleet.catalog`)."""
    gate: Switch = False
    """On prefill nodes: the KV gate, behind which one of them feeds several decode nodes (docs/gate.md)."""
    engine: Engine = Engine()
    """Launch settings."""


class RequestClass(StrEnum):
    """How a channel's requests are served."""

    INTERACTIVE = "interactive"
    """TileRT first, one request at a time per cell; spills to native."""
    BATCH = "batch"
    """vLLM's own decode pool."""


class Channel(Strict):
    """A class of callers with a key."""

    request_class: RequestClass = Field(alias="class")
    """Whether its callers wait for a stream, or want throughput."""
    key: SecretRef
    """The key that its callers send as a bearer token."""
    priority: int = Field(default=0, ge=-100, le=100)
    """Higher overtakes lower in the queue."""


class Tls(Strict):
    """``tls: self-signed`` or the user's own ``tls: {certificate: file:..., key: file:...}``."""

    certificate: SecretRef | None = None
    """PEM file with the chain."""
    key: SecretRef | None = None
    """PEM file with the private key."""

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: Any) -> Any:
        if value == SELF_SIGNED:
            return {}
        if isinstance(value, str):
            raise ValueError(f"is neither the word {SELF_SIGNED} nor a section with certificate and key")  # noqa: TRY004 - pydantic reports only ValueError
        if isinstance(value, dict) and value.keys() < {"certificate", "key"}:
            raise ValueError(f"needs certificate and key, or is the word {SELF_SIGNED}")
        return value

    @model_serializer(mode="wrap")
    def _as_word(self, handler: SerializerFunctionWrapHandler) -> Any:
        return handler(self) if self.certificate else SELF_SIGNED

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        files = handler.resolve_ref_schema(handler(schema))
        return {"anyOf": [{"const": SELF_SIGNED}, {**files, "required": ["certificate", "key"]}]}


class Router(Strict):
    """The front door: HAProxy."""

    host: Word = "local"
    """``local`` (this machine) or a node name such as ``prefill/0``."""
    listen: Annotated[str, AfterValidator(check_listen)] = "127.0.0.1:8080"
    """IP address and port that callers connect to."""
    tls: Tls | None = None
    """Certificate for HTTPS. Left out, a self-signed one, or none where `listen` is loopback or `insecure` is set."""
    insecure: bool = False
    """Allow plain HTTP on an address that is not loopback."""
    spill_queue: int = Field(default=4, ge=0)
    """Interactive requests waiting per fleet above which further ones go to native."""
    queue_timeout: Duration = timedelta(minutes=30)
    """How long a request may wait for a free cell."""
    without_max_tokens: Literal["native", "tilert"] = "native"
    """Where interactive requests go that name no max_tokens: TileRT's router would cut their answer at 256 tokens."""
    channels: dict[ChannelName, Channel] = Field(min_length=1)
    """Classes of callers by name."""


class Network(Strict):
    """What lies between the nodes."""

    rdma: Literal["required", "preferred", "off"] = "preferred"
    """`required` releases a node without RDMA; `off` uses TCP."""
    devices: Word | None = None
    """UCX_NET_DEVICES; left out, active RDMA ports are found on the node."""


class Traffic(Strict):
    """What a typical request looks like: from it `plan` tells how many decode nodes one prefill node keeps busy."""

    prompt_tokens: int = Field(ge=1)
    """Of a typical prompt, those that a prefix cache spares left out."""
    answer_tokens: int = Field(ge=1)
    """Of a typical answer."""
    interactive_share: float = Field(default=1.0, gt=0, le=1, allow_inf_nan=False)
    """Of all requests, those that TileRT serves; the others take prefill time, too."""
    requests_per_minute: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """All channels together. Left out, only the ratio of the nodes is looked at, not their number."""


class Budget(Strict):
    """Limits; `plan` refuses what goes above them."""

    max_usd_per_hour: Usd | None = None
    """What all nodes together may cost per hour."""
    max_usd_per_day: Usd | None = None
    """What it may cost from midnight to midnight of the schedule's zone, UTC without one."""
    max_usd_total: Usd | None = None
    """What the whole fleet may have cost, all rentals together."""
    max_nodes: int | None = Field(default=None, ge=1)
    """Rentals at the same time, those of unknown outcome and those that are ending included."""
    max_creates_per_hour: int | None = Field(default=None, ge=1)
    """Create calls within an hour; left out, five for each node of the file and at least 20."""
    ttl: Duration | None = None
    """Latest end of every rental, counted from its creation."""


class Fleet(Strict):
    """The whole file."""

    name: Annotated[str, AfterValidator(check_fleet_name)]
    """Names the service; part of every node's name at the provider."""
    provider: ProviderUse
    """Where nodes are rented: a name, or `use` with the provider's options."""
    fallback_providers: tuple[ProviderUse, ...] = ()
    """Where else, in this order, when `provider` has not all nodes; unless RDMA is off all nodes are at one of them."""
    model: Model = Model()
    """The model and the longest request."""
    weights: Weights = Weights()
    """Where converted weights are kept between rentals."""
    versions: Versions = Versions()
    """Pinned versions."""
    pools: dict[PoolName, Pool] = Field(min_length=1)
    """Nodes by the pool's name; a pool named after a role plays it."""
    network: Network = Network()
    """RDMA between the nodes."""
    router: Router
    """The front door."""
    budget: Budget = Budget()
    """Limits."""
    schedule: Schedule | None = None
    """How many nodes when; left out, always the pools' counts."""
    traffic: Traffic | None = None
    """Expected requests."""
    lock: dict[str, Any] | None = None
    """Written by `up` into the lock file: what this fleet resolved to."""

    def with_counts(self, counts: Mapping[str, int]) -> Fleet:
        """The same fleet with other numbers of nodes; pools that are not named keep theirs."""
        pools = {
            name: pool.model_copy(update={"count": counts.get(name, pool.count)}) for name, pool in self.pools.items()
        }
        return self.model_copy(update={"pools": pools})

    @property
    def counts(self) -> dict[str, int]:
        """Nodes per pool."""
        return {name: pool.count for name, pool in self.pools.items()}

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

    def first_of(self, role: Role) -> NodeName | None:
        """The first node of a role, in file order."""
        return next((NodeName(name, 0) for name in self.pools_of(role) if self.pools[name].count), None)

    def provider_of(self, pool: str) -> ProviderUse:
        """Where a pool's nodes are rented first of all."""
        return self.providers_of(pool)[0]

    def providers_of(self, pool: str) -> tuple[ProviderUse, ...]:
        """Where a pool's nodes may be rented, in the order of preference."""
        own = self.pools[pool].provider
        return (own,) if own else (self.provider, *self.fallback_providers)

    def uses(self) -> tuple[ProviderUse, ...]:
        """Every provider section of the file."""
        own = [pool.provider for pool in self.pools.values() if pool.provider]
        return (self.provider, *self.fallback_providers, *own)
