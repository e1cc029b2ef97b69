"""Listed hosts as a `Provider`: create takes a lease, terminate gives it back.

Nothing here opens a connection. The lease is kept in the state directory, and `lease_script` takes it on the host too;
the engine runs that over its own connection.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpufleet.catalog.facts import gpus
from gpufleet.domain.market import Instance, InstanceState, Inventory, Offer, OfferQuery, SshEndpoint
from gpufleet.providers.adapter import Adapter, Place
from gpufleet.providers.base import Account, Capabilities, CreateRequest, Lifetime, Ownership, TerminateAck
from gpufleet.providers.document import Document
from gpufleet.providers.errors import (
    AmbiguousOutcome,
    CapacityError,
    InstanceNotFound,
    InvalidRequest,
    PriceChanged,
    ProtocolError,
)
from gpufleet.providers.matching import fits
from gpufleet.providers.ssh import leases
from gpufleet.providers.ssh.leases import Lease, Leases
from gpufleet.providers.ssh.options import Host, SshOptions, hosts_of

_REMEMBERED = timedelta(days=1)
"""How long a lease that was given back stays in listings."""


class SshProvider:
    """Also `gpufleet.providers.base.LeasesHosts`."""

    def __init__(self, name: str, hosts: Sequence[Host], fleet_dir: Path, state_dir: Path) -> None:
        self.name = name
        self._hosts = {host.host_id: host for host in hosts}
        self._fleet_dir = fleet_dir
        self._document = Document(state_dir / "ssh-leases.json", Leases)

    @classmethod
    def open(cls, options: SshOptions, place: Place) -> SshProvider:
        """Open the inventory.

        Raises:
            InvalidFleet: the inventory file is missing or wrong.
        """
        hosts = hosts_of(options, fleet_dir=place.fleet_dir, provider=place.name)
        return cls(place.name, hosts, place.fleet_dir, place.state_dir)

    @property
    def caps(self) -> Capabilities:
        return Capabilities(
            lifetime=Lifetime.RELEASE,
            ownership=Ownership.NAME,
            idempotent_create=True,
            terminate_while_provisioning=True,
            settle_seconds=0.0,
            poll_seconds=0.2,
        )

    def whoami(self) -> Account:
        with self._book() as book:
            return Account(book.account)

    def offers(self, query: OfferQuery) -> list[Offer]:
        with self._book() as book:
            taken = {lease.host.host_id for lease in book.held()}
        free = [self._offer(host) for host in self._hosts.values() if host.host_id not in taken]
        return sorted((o for o in free if fits(o, query)), key=lambda o: (o.usd_per_hour, o.offer_id))

    def create(self, request: CreateRequest) -> Instance:
        try:
            with self._book() as book:
                known = [lease for lease in book.held() if lease.key == request.key]
                return self._instance(known[0] if known else self._lease(book, request))
        except ProtocolError as error:
            raise AmbiguousOutcome(error.message) from error

    def get(self, instance_id: str) -> Instance:
        return self._instance(self._find(instance_id))

    def inventory(self) -> Inventory:
        with self._book() as book:
            known = [lease for lease in book.leases.values() if not _is_forgotten(lease, datetime.now(UTC))]
            return Inventory(book.account, tuple(self._instance(lease) for lease in known))

    def terminate(self, instance_id: str) -> TerminateAck:
        with self._book() as book:
            lease = book.leases.get(instance_id)
            if lease is not None and lease.ended_at is None:
                lease.ended_at = datetime.now(UTC)
                self._document.save(book)
        return TerminateAck.GONE

    def lease_script(self, instance_id: str) -> str:
        """See `gpufleet.providers.base.LeasesHosts`. Raises InstanceNotFound."""
        return leases.lease_script(self._find(instance_id))

    def release_script(self, instance_id: str) -> str:
        """See `gpufleet.providers.base.LeasesHosts`. Raises InstanceNotFound."""
        return leases.release_script(self._find(instance_id))

    @contextmanager
    def _book(self) -> Iterator[Leases]:
        """The leases, locked; written at first use, so that the account keeps its name."""
        with self._document.locked() as book:
            if not self._document.path.exists():
                self._document.save(book)
            yield book

    def _find(self, instance_id: str) -> Lease:
        with self._book() as book:
            lease = book.leases.get(instance_id)
        if lease is None or _is_forgotten(lease, datetime.now(UTC)):
            raise InstanceNotFound(f"there is no lease {instance_id}")
        return lease

    def _lease(self, book: Leases, request: CreateRequest) -> Lease:
        host = self._hosts.get(request.offer.offer_id)
        if host is None or any(lease.host.host_id == request.offer.offer_id for lease in book.held()):
            raise CapacityError(f"host {request.offer.offer_id} is not free")
        self._check(host, request)
        lease = Lease(
            instance_id=f"{re.sub('[^A-Za-z0-9.]', '-', host.host_id)}-{secrets.token_hex(4)}",
            key=request.key,
            fleet=request.fleet,
            node=str(request.node),
            host=host,
            created_at=datetime.now(UTC),
            deadline_at=request.deadline_at,
        )
        book.leases[lease.instance_id] = lease
        self._document.save(book)
        return lease

    def _check(self, host: Host, request: CreateRequest) -> None:
        if host.usd_per_hour > request.max_usd_per_hour:
            raise PriceChanged(f"{host.host_id} costs ${host.usd_per_hour}/h, above ${request.max_usd_per_hour}")
        if host.disk_gb is not None and request.disk_gb > host.disk_gb:
            raise InvalidRequest(f"{host.host_id} has {host.disk_gb} GB of disk, not {request.disk_gb}")
        if host.key is not None and not host.key.path(self._fleet_dir).is_file():
            raise InvalidRequest(f"the login key of {host.host_id} does not exist: {host.key}")

    def _offer(self, host: Host) -> Offer:
        known = gpus().get(host.gpu.model)
        vram = host.vram_gb if host.vram_gb is not None else known.vram_gb if known else 0
        return Offer(
            provider=self.name,
            offer_id=host.host_id,
            gpu=host.gpu,
            vram_gb_per_gpu=vram,
            usd_per_hour=host.usd_per_hour,
            region=host.region,
            interconnect=host.rdma or "unknown",
            ram_gb=host.ram_gb,
            disk_gb=host.disk_gb,
            stock=1,
            boot_seconds=0.0,
        )

    def _instance(self, lease: Lease) -> Instance:
        host = self._hosts.get(lease.host.host_id, lease.host)
        over = lease.ended_at is not None
        return Instance(
            provider=self.name,
            instance_id=lease.instance_id,
            name=lease.key,
            state=InstanceState.TERMINATED if over else InstanceState.RUNNING,
            raw_state="released" if over else "leased",
            usd_per_hour=lease.host.usd_per_hour,
            gpu=host.gpu,
            region=host.region,
            ssh=self._endpoint(host),
            private_ip=host.address,
            host_id=host.host_id,
            created_at=lease.created_at,
            ended_at=lease.ended_at,
        )

    def _endpoint(self, host: Host) -> SshEndpoint:
        key_file = str(host.key.path(self._fleet_dir).resolve()) if host.key else None
        return SshEndpoint(host.host, host.port, host.user, host.host_key, host.workdir, key_file)


ADAPTER = Adapter(SshOptions, SshProvider.open)


def _is_forgotten(lease: Lease, now: datetime) -> bool:
    return lease.ended_at is not None and now - lease.ended_at > _REMEMBERED
