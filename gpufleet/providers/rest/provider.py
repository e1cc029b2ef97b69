"""A provider that a file describes: what every description can do."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gpufleet.domain.market import Instance, InstanceState, Inventory, Offer, OfferQuery
from gpufleet.errors import InvalidFleet
from gpufleet.providers.adapter import Place
from gpufleet.providers.base import (
    Account,
    Capabilities,
    ClusterRequest,
    CreateRequest,
    Ownership,
    TerminateAck,
)
from gpufleet.providers.errors import (
    AmbiguousOutcome,
    ConflictError,
    InstanceNotFound,
    InvalidRequest,
    PriceChanged,
    ProtocolError,
    Unsupported,
)
from gpufleet.providers.matching import fits
from gpufleet.providers.rest.client import Client, Credentials, Reply
from gpufleet.providers.rest.description import Create, Description, Offers, One
from gpufleet.providers.rest.expressions import BadExpression, evaluate, number
from gpufleet.providers.rest.options import RestOptions
from gpufleet.providers.rest.pacing import Pacer
from gpufleet.providers.rest.paging import read_all
from gpufleet.providers.rest.reading import read_instance, read_offers
from gpufleet.providers.rest.values import query_values, request_values
from gpufleet.providers.rest.verified import why_not_yet

_SHORT = 12


class RestProvider:
    """What every description can do; see the classes below for the rest."""

    def __init__(self, name: str, description: Description, options: RestOptions, place: Place) -> None:
        self.name = name
        self.description = description
        self._options = options
        self._place = place
        self._pacer = Pacer(description.rate_limits)
        self._option = {**description.settings, **options.settings}
        self._client = self._new_client()
        self._account: Account | None = None

    @property
    def caps(self) -> Capabilities:
        told = self.description.capabilities
        return Capabilities(
            ownership=told.ownership,
            name_max=told.name_max,
            idempotent_create=told.idempotent_create,
            server_expiry=told.server_expiry,
            poweroff_stops_billing=told.poweroff_stops_billing,
            price_guard=told.price_guard,
            spot=told.spot,
            runtime=told.runtime,
            keeps_entrypoint=told.keeps_entrypoint,
            private_network=told.private_network,
            clusters=self.description.clusters is not None,
            login=told.login,
            terminate_while_provisioning=told.terminate_while_provisioning,
            creates_at_once=1 if told.ownership is Ownership.NONE else told.creates_at_once,
            settle_seconds=told.settle_seconds,
            poll_seconds=told.poll_seconds,
            verified=self._place.verified,
            create_refused=self._create_refused(),
        )

    @property
    def base_url(self) -> str:
        """Where it is reached."""
        return self._options.base_url or self.description.base_url or ""

    def whoami(self) -> Account:
        if self._account is None or self.description.whoami is not None:
            self._account = self._ask_account()
        return self._account

    def offers(self, query: OfferQuery) -> list[Offer]:
        found = self._offers_of(self.description.offers, "offers", query)
        if self.description.clusters and self.description.clusters.offers:
            found += self._offers_of(self.description.clusters.offers, "cluster_offers", query)
        return sorted((o for o in found if fits(o, query)), key=lambda o: (o.usd_per_hour, o.offer_id))

    def create(self, request: CreateRequest) -> Instance:
        self._check(request)
        made = self._create(self.description.create, "create", request_values(request))
        return Instance(
            provider=self.name,
            instance_id=made,
            name=request.key,
            state=InstanceState.PROVISIONING,
            raw_state="created",
            usd_per_hour=request.offer.usd_per_hour,
            gpu=request.offer.gpu,
            region=request.offer.region,
            created_at=datetime.now(UTC),
        )

    def get(self, instance_id: str) -> Instance:
        item = self._one("get", self.description.get, {"instance_id": instance_id})
        return self._read(item)

    def inventory(self) -> Inventory:
        account = self.whoami().account_id
        rows = read_all(self._client, "list", self.description.list, {"option": self._option})
        instances = {i.instance_id: i for i in map(self._read, rows)}
        return Inventory(account, tuple(instances.values()))

    def terminate(self, instance_id: str) -> TerminateAck:
        return self._end("terminate", self.description.terminate, {"instance_id": instance_id})

    def wait_before(self, operation: str) -> float:
        """See `Paced`."""
        return self._pacer.take_turn(operation)

    def _new_client(self) -> Client:
        if not self.base_url:
            raise InvalidFleet(
                f"provider {self.name} has no base_url: its address is not public",
                where=f"provider {self.name}",
                hint=f"set base_url and key for it; see: gpufleet providers show {self.name}",
            )
        base, client_id = self._place.fleet_dir, self._options.client_id
        return Client(
            self.name,
            self.base_url,
            auth=self.description.auth,
            credentials=Credentials(
                lambda: self._options.key.read(base), (lambda: client_id.read(base)) if client_id else None
            ),
            rules=self.description.errors,
            pacer=self._pacer,
            timeout_seconds=self.description.timeout_seconds,
        )

    def _create_refused(self) -> str:
        return (
            why_not_yet(
                self.description,
                self.base_url,
                state_dir=self._place.state_dir,
                provider=self.name,
                acknowledged=self._options.acknowledged_unverified,
            )
            or self._unowned()
        )

    def _unowned(self) -> str:
        if self.description.capabilities.ownership is not Ownership.NONE or self._options.accept_unowned:
            return ""
        return f"{self.name} keeps no name of ours, so a lost answer could leave a node; set accept_unowned: true"

    def _ask_account(self) -> Account:
        shape = self.description.whoami
        if shape is None:
            # A fingerprint that tells two keys apart and gives neither away.
            key = self._options.key.read(self._place.fleet_dir)
            mark = hmac.new(b"gpufleet account", f"{self.name}\n{key}".encode(), hashlib.sha256).hexdigest()
            return Account(f"key-{mark[:_SHORT]}")
        body = self._client.call("whoami", shape.request, {"option": self._option}).body
        account = self._find(shape.account, body)
        if account in {None, ""}:
            raise ProtocolError(f"{self.name} does not say whose account this is")
        balance = number(self._find(shape.balance_usd, body)) if shape.balance_usd else None
        limit = number(self._find(shape.spend_limit_usd_per_hour, body)) if shape.spend_limit_usd_per_hour else None
        return Account(str(account), balance, limit)

    def _offers_of(self, shape: Offers, operation: str, query: OfferQuery) -> list[Offer]:
        values = {"option": self._option, "query": query_values(query)}
        also = {name: self._client.call(operation, request, values).body for name, request in shape.also.items()}
        rows = read_all(self._client, operation, shape, values)
        runtime = self.description.capabilities.runtime
        return read_offers(shape, rows, {**values, "also": also}, provider=self.name, runtime=runtime)

    def _create(self, shape: Create, operation: str, values: Mapping[str, Any]) -> str:
        reply = self._client.call(operation, shape.request, {**values, "option": self._option}, ids=shape.ids_in_errors)
        made = _id(shape, reply)
        if made is None:
            raise AmbiguousOutcome(f"{self.name} accepted the request and gave no id")
        return made

    def _check(self, request: CreateRequest | ClusterRequest) -> None:
        offer, limit = request.offer, request.max_usd_per_hour
        if offer.disk_gb is not None and request.disk_gb > offer.disk_gb:
            raise InvalidRequest(f"{offer.offer_id} has {offer.disk_gb} GB of disk, not {request.disk_gb}")
        if offer.provider != self.name:
            raise Unsupported(f"offer {offer.offer_id} is one of {offer.provider}")
        if (offer.cluster is None) is isinstance(request, ClusterRequest):
            raise Unsupported(f"offer {offer.offer_id} is rented {'as a cluster' if offer.cluster else 'by the node'}")
        if offer.usd_per_hour > limit:
            raise PriceChanged(f"{offer.offer_id} costs ${offer.usd_per_hour}/h, above ${limit}")
        if refused := self.caps.create_refused:
            raise Unsupported(refused)

    def _one(self, operation: str, shape: One, values: Mapping[str, Any]) -> Any:
        reply = self._client.call(operation, shape.request, {**values, "option": self._option})
        item = self._find(shape.item, reply.body)
        if item is None or item == []:
            raise InstanceNotFound(f"{self.name} has no {values}")
        return item

    def _end(self, operation: str, shape: One, values: Mapping[str, Any]) -> TerminateAck:
        try:
            self._client.call(operation, shape.request, {**values, "option": self._option})
        except InstanceNotFound:
            return TerminateAck.GONE
        except ConflictError as conflict:
            return TerminateAck.REQUESTED if conflict.ending else TerminateAck.NOT_YET
        return TerminateAck.REQUESTED

    def _read(self, item: Any) -> Instance:
        return read_instance(self.description.instance, item, self._option, provider=self.name)

    def _find(self, expression: str, body: Any) -> Any:
        try:
            return evaluate(expression, body)
        except BadExpression as error:
            raise ProtocolError(f"{self.name}: an answer does not have the expected shape: {error}") from None


def _id(shape: Create, reply: Reply) -> str | None:
    try:
        made = evaluate(shape.id, {"body": reply.body, "text": reply.text})
    except BadExpression:
        return None
    return None if made in {None, ""} or isinstance(made, list | dict) else str(made)
