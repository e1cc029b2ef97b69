"""A provider that a file describes, as a `Provider`. The class has the optional abilities that the file describes."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gpufleet.domain.market import Extra, ExtraKind, Instance, InstanceState, Inventory, Offer, OfferQuery
from gpufleet.errors import InvalidFleet
from gpufleet.providers.adapter import Adapter, Place
from gpufleet.providers.base import (
    Account,
    Capabilities,
    Cluster,
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
from gpufleet.providers.rest.description import Clusters, Create, Description, Offers, One
from gpufleet.providers.rest.expressions import BadExpression, evaluate, number
from gpufleet.providers.rest.loading import check_description
from gpufleet.providers.rest.options import RestOptions
from gpufleet.providers.rest.pacing import Pacer
from gpufleet.providers.rest.paging import read_all
from gpufleet.providers.rest.reading import read_cluster, read_extras, read_instance, read_offers
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
        made = self._create(self.description.create, "create", _told(request))
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
        values = {"option": self._option, "query": _query(query)}
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


class WithKeys(RestProvider):
    """The description has ``ssh_keys``."""

    def ensure_ssh_key(self, name: str, public_key: str) -> str:
        """See `InstallsKeys`."""
        shape = self.description.ssh_keys
        assert shape is not None
        wanted = public_key.split()[:2]
        for row in read_all(self._client, "ssh_keys", shape.list, {"option": self._option}):
            if str(self._find(shape.public_key, row) or "").split()[:2] == wanted:
                return str(self._find(shape.use or shape.ref, row))
        values = {"name": name, "public_key": public_key, "option": self._option}
        reply = self._client.call("create_ssh_key", shape.create, values)
        ref = self._find(shape.created, {"body": reply.body, "text": reply.text, "name": name})
        if ref in {None, ""}:
            raise ProtocolError(f"{self.name} took the SSH key and gave no reference to it")
        return str(ref)


class WithExtras(RestProvider):
    """The description has ``extras``, or SSH keys that can be deleted."""

    def extras(self) -> list[Extra]:
        """See `HasExtras`."""
        found = [extra for shape in self.description.extras for extra in self._extras(shape)]
        return [*found, *self._keys()]

    def delete_extra(self, kind: ExtraKind, ref: str) -> TerminateAck:
        """See `HasExtras`."""
        keys = self.description.ssh_keys
        request = next((shape.delete for shape in self.description.extras if shape.kind is kind), None)
        if kind is ExtraKind.SSH_KEY and keys:
            request = keys.delete
        if request is None:
            raise Unsupported(f"{self.name} has no {kind} to delete")
        return self._end(f"delete_{kind}", One(request=request), {"ref": ref})

    def _extras(self, shape: Any) -> list[Extra]:
        rows = read_all(self._client, f"list_{shape.kind}", shape.list, {"option": self._option})
        return read_extras(shape, rows, provider=self.name)

    def _keys(self) -> list[Extra]:
        shape = self.description.ssh_keys
        if shape is None or shape.delete is None:
            return []
        rows = read_all(self._client, "ssh_keys", shape.list, {"option": self._option})
        return [
            Extra(ExtraKind.SSH_KEY, str(self._find(shape.ref, row)), str(self._find(shape.name, row))) for row in rows
        ]


class WithClusters(RestProvider):
    """The description has ``clusters``."""

    @property
    def _clusters(self) -> Clusters:
        assert self.description.clusters is not None
        return self.description.clusters

    def create_cluster(self, request: ClusterRequest) -> Cluster:
        """See `RentsClusters`."""
        self._check(request)
        values = {**_told(request), "nodes": len(request.nodes)}
        made = self._create(self._clusters.create, "create_cluster", values)
        return Cluster(self.name, made, request.key, InstanceState.PROVISIONING, "created", (), datetime.now(UTC))

    def cluster(self, cluster_id: str) -> Cluster:
        """See `RentsClusters`."""
        return self._cluster(self._one("cluster", self._clusters.get, {"cluster_id": cluster_id}))

    def clusters(self) -> list[Cluster]:
        """See `RentsClusters`."""
        rows = read_all(self._client, "clusters", self._clusters.list, {"option": self._option})
        return [self._cluster(row) for row in rows]

    def delete_cluster(self, cluster_id: str) -> TerminateAck:
        """See `RentsClusters`."""
        return self._end("delete_cluster", self._clusters.delete, {"cluster_id": cluster_id})

    def inventory(self) -> Inventory:
        """With the members that only their cluster tells."""
        inventory = super().inventory()
        if self._clusters.members is None:
            return inventory
        found = {i.instance_id: i for i in inventory.instances}
        found |= {m.instance_id: m for cluster in self.clusters() for m in cluster.members}
        return Inventory(inventory.account, tuple(found.values()))

    def get(self, instance_id: str) -> Instance:
        """Members too, where only their cluster tells them."""
        try:
            return super().get(instance_id)
        except InstanceNotFound:
            if self._clusters.members is None:
                raise
            for cluster in self.clusters():
                for member in cluster.members:
                    if member.instance_id == instance_id:
                        return member
            raise

    def _cluster(self, item: Any) -> Cluster:
        expression = self._clusters.members
        rows = self._find(expression, {"item": item}) if expression else []
        members = [self._read(row) for row in rows or []]
        return read_cluster(self._clusters, item, members, provider=self.name)


def open_rest(options: RestOptions, place: Place) -> RestProvider:
    """The provider of a file with a ``rest:`` section.

    Raises:
        InvalidFleet: the section is wrong, or an option is missing.
    """
    description = check_description(place.description, name=place.name)
    return class_for(description)(place.name, description, options, place)


def class_for(description: Description, base: type[RestProvider] = RestProvider) -> type[RestProvider]:
    """The class with just the abilities that a description has; the engine finds them by type."""
    keys = description.ssh_keys
    parts: list[type[RestProvider]] = []
    if description.clusters:
        parts.append(WithClusters)
    if description.extras or (keys and keys.delete):
        parts.append(WithExtras)
    if keys:
        parts.append(WithKeys)
    own = () if base is RestProvider and parts else (base,)
    return type(base.__name__, (*own, *parts), {})


def _told(request: CreateRequest | ClusterRequest) -> dict[str, Any]:
    """What a create's templates see."""
    offer = request.offer
    deadline = request.deadline_at
    return {
        "request": {
            "key": request.key,
            "fleet": request.fleet,
            "max_usd_per_hour": request.max_usd_per_hour,
            "ssh_public_key": request.ssh_public_key,
            "ssh_key_ref": request.ssh_key_ref,
            "disk_gb": request.disk_gb,
            "deadline_at": deadline.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if deadline else None,
            "image": request.image,
            "start": request.start,
        },
        "offer": offer_values(offer),
    }


def offer_values(offer: Offer) -> dict[str, Any]:
    """What a create's templates see as ``offer``."""
    return {
        "offer_id": offer.offer_id,
        "gpu": offer.gpu.model,
        "gpu_count": offer.gpu.count,
        "region": offer.region,
        "spot": offer.spot,
        "usd_per_hour": offer.usd_per_hour,
        "launch": dict(offer.launch),
    }


def _query(query: OfferQuery) -> dict[str, Any]:
    """What the templates and fields of offers see."""
    return {
        "gpu": query.gpu.model if query.gpu else None,
        "gpu_count": query.gpu.count if query.gpu else None,
        "region": query.region,
        "spot": query.spot,
        "disk_gb": query.min_disk_gb,
    }


def _id(shape: Create, reply: Reply) -> str | None:
    try:
        made = evaluate(shape.id, {"body": reply.body, "text": reply.text})
    except BadExpression:
        return None
    return None if made in {None, ""} or isinstance(made, list | dict) else str(made)


ADAPTER = Adapter(RestOptions, open_rest)
