"""The ``rest:`` section of a provider file, as types. `docs/providers.md` explains it to those who write one.

``Expr`` fields are JMESPath over what their docstrings name; ``Template`` fields are what is sent, in which text
that begins with ``=`` is JMESPath.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from gpufleet.domain.market import ExtraKind, InstanceState, Runtime
from gpufleet.providers.base import Login, Ownership
from gpufleet.providers.rest.expressions import compiled, expressions_in


def _check_expression(text: str) -> str:
    compiled(text)
    return text


def _check_template(template: Any) -> Any:
    for expression in expressions_in(template):
        compiled(expression)
    return template


def _check_regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"'{text}' is not a regular expression: {error}") from None
    return text


Expr = Annotated[str, AfterValidator(_check_expression)]
Template = Annotated[Any, AfterValidator(_check_template)]
Regex = Annotated[str, AfterValidator(_check_regex)]


class Section(BaseModel):
    """Frozen, and a key that it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, use_attribute_docstrings=True)


class Auth(Section):
    """How a request shows whose it is."""

    type: Literal["bearer", "header", "query", "oauth2"] = "bearer"
    name: str = "Authorization"
    """Header or query parameter that carries the key."""
    prefix: str = ""
    """Before the key in a header."""
    token_path: str = "/oauth2/token"  # noqa: S105 - a path
    """Where client credentials are changed for a token (oauth2)."""


class Request(Section):
    """One HTTP request."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    path: Annotated[str, Field(pattern=r"^/[^\s?#]*$")]
    """Below the base URL; ``{instance_id}`` and the like are put in percent-encoded."""
    query: Template = Field(default_factory=dict)
    body: Template = None
    """Sent as JSON; left out, no body is sent."""


class Paging(Section):
    """How a listing goes on. Whatever the style, it is read to its end or counts as failed."""

    style: Literal["none", "offset", "page", "token"] = "none"
    parameter: str = ""
    """Query parameter for the offset, the page's number or the token."""
    first: int = 0
    size_parameter: str = ""
    size: int = Field(default=100, ge=1, le=1000)
    next: Expr | None = None
    """Over the body: the next token; null at the end."""
    total: Expr | None = None
    """Over the body: how many there are in all, where the provider says."""

    @model_validator(mode="after")
    def _whole(self) -> Paging:
        if self.style != "none" and not self.parameter:
            raise ValueError(f"paging by {self.style} needs 'parameter'")
        if self.style == "token" and self.next is None:
            raise ValueError("paging by token needs 'next'")
        return self


class Listing(Section):
    """A request whose answer holds many."""

    request: Request
    paging: Paging = Paging()
    items: Expr
    """Over the body: a list. Null means that the answer has not the expected shape."""


class Price(Section):
    """A price and its unit, which are never guessed."""

    amount: Expr
    """Over {item, each, also}: a number, or text that is one."""
    per: Literal["node", "gpu"]
    unit: Literal["usd", "cents"]
    """Per hour."""
    currency: Expr | None = None
    """Where the answer names it; any other than USD is not rentable."""
    plus: Expr | None = None
    """Over {item, each, also, query}: further USD per node-hour (disk, address)."""


class Offers(Listing):
    """What can be rented. Fields see {item, each, also, option, query}."""

    each: Expr | None = None
    """Over {item, also}: a list inside each item (regions, data centres) that makes an offer of each element."""
    also: dict[str, Request] = Field(default_factory=dict)
    """Further requests; their bodies are ``also.NAME``."""
    keep: Expr | None = None
    """Only where this is true."""
    price: Price
    fields: dict[str, Expr]
    """See `OFFER_FIELDS`."""
    launch: dict[str, Expr] = Field(default_factory=dict)
    """What `create` needs of the offer, as text: ``offer.launch.NAME`` there."""
    billing_increment_seconds: int = Field(default=3600, ge=1)
    """Pessimistic where the provider does not say."""
    min_rental_seconds: int = Field(default=0, ge=0)
    boot_seconds: float = Field(default=600.0, ge=0)

    @model_validator(mode="after")
    def _known(self) -> Offers:
        _check_fields(self.fields, OFFER_FIELDS, need=("offer_id", "gpu", "gpu_count", "region"))
        return self


OFFER_FIELDS = (
    "offer_id",
    "gpu",
    "gpu_count",
    "vram_gb_per_gpu",
    "region",
    "interconnect",
    "interconnect_gbps",
    "ram_gb",
    "disk_gb",
    "vcpus",
    "spot",
    "stock",
    "boot_seconds",
    "security",
    "runtime",
    "contract_end",
    "min_nodes",
    "max_nodes",
)
"""``gpu`` is best written with ``gpu_model()``; without a GPU there is no offer. ``min_nodes`` makes it a cluster."""


class StateRule(Section):
    """A state that more than one word decides."""

    when: Expr
    """Over the instance."""
    state: InstanceState = Field(alias="is")


class InstanceShape(Section):
    """How an instance is read. Fields see {item, option}."""

    fields: dict[str, Expr]
    """See `INSTANCE_FIELDS`."""
    price: Price | None = None
    ssh: dict[Literal["host", "port", "user", "jump_host", "jump_user"], Expr] = Field(default_factory=dict)
    states: dict[str, InstanceState]
    """By the provider's word, in lower case; any other word is UNKNOWN and counts as billing."""
    state_rules: tuple[StateRule, ...] = ()
    """Looked at before ``states``."""
    extras: Expr | None = None
    """Over {item}: a list of {kind, ref, name} that do not end with the instance by themselves."""

    @model_validator(mode="after")
    def _known(self) -> InstanceShape:
        _check_fields(self.fields, INSTANCE_FIELDS, need=("id", "name", "state"))
        return self


INSTANCE_FIELDS = (
    "id",
    "name",
    "state",
    "message",
    "gpu",
    "gpu_count",
    "region",
    "private_ip",
    "host_id",
    "created_at",
    "ended_at",
    "expires_at",
    "cluster_id",
    "rank",
)


class Create(Section):
    """The one call that costs money. Templates see {request, offer, option}."""

    request: Request
    id: Expr
    """Over {body, text}: the new id."""
    ids_in_errors: Expr | None = None
    """Over {body, text} of a failed answer: ids of what was made all the same."""


class One(Section):
    """A request about one thing. Templates see {instance_id, option}."""

    request: Request
    item: Expr = "@"
    """Over the body."""


class Whoami(Section):
    """Whose money it is."""

    request: Request
    account: Expr
    """Over the body: what never changes for this account."""
    balance_usd: Expr | None = None
    spend_limit_usd_per_hour: Expr | None = None


class SshKeys(Section):
    """Public keys that the provider must know. Templates see {name, public_key}; rows are read by ref, name, key."""

    list: Listing
    ref: Expr = "id"
    name: Expr = "name"
    public_key: Expr = "public_key"
    use: Expr | None = None
    """What a create names the key by, where that is not ``ref``."""
    create: Request
    created: Expr
    """Over {body, text, name}: what a create names the new key by."""
    delete: Request | None = None
    """Sees {ref}."""


class Extras(Section):
    """What the provider keeps beside instances."""

    kind: ExtraKind
    list: Listing
    ref: Expr = "id"
    name: Expr = "name"
    usd_per_hour: Price | None = None
    gone: Expr | None = None
    """Over a row: true for one that is deleted and no longer costs."""
    delete: Request
    """Sees {ref}."""


class Clusters(Section):
    """Equal nodes on one fabric, rented as a whole."""

    offers: Offers | None = None
    create: Create
    """Sees {request, offer, option, nodes}."""
    get: One
    list: Listing
    delete: One
    fields: dict[Literal["id", "name", "state", "created_at"], Expr]
    states: dict[str, InstanceState]
    members: Expr | None = None
    """Over {item}: the member instances, read by `instance`; left out, they stand in the inventory."""
    extras: Expr | None = None
    """Over {item}: a list of {kind, ref, name} that do not end with the cluster by themselves."""


class ErrorRule(Section):
    """What a failed answer means. The first rule of which all parts fit counts."""

    operations: tuple[str, ...] = ()
    """Only for these; empty: all."""
    code: tuple[str, ...] = ()
    """The provider's own code is one of these."""
    status: tuple[int, ...] = ()
    text: Regex | None = None
    """Found in the message, whatever the case."""
    kind: Literal[
        "auth", "payment", "quota", "capacity", "not-found", "conflict", "ending", "rate-limit", "invalid", "price",
        "transient", "ambiguous", "unsupported",
    ] = Field(alias="is")  # fmt: skip


class ErrorMap(Section):
    """How failures are told apart: by the rules, then by status."""

    failed: Expr | None = None
    """Over the body of a 2xx answer: true where it is a failure all the same."""
    code: Expr | None = None
    message: Expr = "message || error.message || error || detail || title"
    """Over the body."""
    rules: tuple[ErrorRule, ...] = ()


class RestCapabilities(Section):
    """See `gpufleet.providers.base.Capabilities`; what is left out is the pessimistic value."""

    ownership: Ownership = Ownership.NONE
    name_max: int = Field(default=50, ge=1)
    idempotent_create: bool = False
    server_expiry: bool = False
    poweroff_stops_billing: bool = False
    price_guard: bool = False
    spot: bool = False
    runtime: Runtime = Runtime.DOCKER
    keeps_entrypoint: bool = False
    private_network: bool = True
    login: Login = Login.DIRECT
    terminate_while_provisioning: bool = False
    creates_at_once: int = Field(default=4, ge=1)
    settle_seconds: float = Field(default=600.0, ge=0)
    poll_seconds: float = Field(default=10.0, gt=0)


class Description(Section):
    """The whole ``rest:`` section."""

    base_url: str | None = None
    """None: nobody knows it; the operator must give one."""
    assumed: bool = False
    """The shape is a guess: nothing is rented before `gpufleet providers verify` passed and was acknowledged."""
    auth: Auth = Auth()
    settings: dict[str, Any] = Field(default_factory=dict)
    """Values that templates see as ``option.NAME``; the fleet file may set them."""
    capabilities: RestCapabilities = RestCapabilities()
    rate_limits: dict[str, Decimal] = Field(default_factory=dict)
    """Least seconds between two calls of an operation; ``"*"`` for all of them together."""
    timeout_seconds: float = Field(default=30.0, gt=0)
    whoami: Whoami | None = None
    """Left out: the account is told by a fingerprint of the key."""
    offers: Offers
    create: Create
    get: One
    list: Listing
    terminate: One
    instance: InstanceShape
    ssh_keys: SshKeys | None = None
    extras: tuple[Extras, ...] = ()
    clusters: Clusters | None = None
    errors: ErrorMap = ErrorMap()
    sandbox: dict[str, Template] = Field(default_factory=dict)
    """Example answers by operation, for `gpufleet providers sandbox`."""


def _check_fields(given: dict[str, str], known: tuple[str, ...], *, need: tuple[str, ...]) -> None:
    if strange := sorted(set(given) - set(known)):
        raise ValueError(f"'{strange[0]}' is not a field; these are: {', '.join(known)}")
    if missing := [name for name in need if name not in given]:
        raise ValueError(f"field '{missing[0]}' is missing")
