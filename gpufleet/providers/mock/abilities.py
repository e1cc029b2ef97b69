"""What a mock market may have beside instances: volumes, SSH keys, clusters. Each refuses what real ones refuse."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gpufleet.domain.market import Extra, ExtraKind, InstanceState
from gpufleet.providers.base import Cluster, ClusterRequest, TerminateAck
from gpufleet.providers.errors import AmbiguousOutcome, InstanceNotFound, ProtocolError, Transient, Unsupported
from gpufleet.providers.mock import lifecycle, world
from gpufleet.providers.mock.faults import first, refuse
from gpufleet.providers.mock.market import ClusterRecord, Market, Rental, SshKey, Volume
from gpufleet.providers.mock.options import Fault
from gpufleet.providers.mock.provider import MockProvider
from gpufleet.providers.mock.renting import listed_after

State = InstanceState
_ORDER = (State.ERROR, State.PREEMPTED, State.STOPPED, State.PROVISIONING, State.BOOTING, State.RUNNING)
"""A cluster is what the worst of its living members is."""


class WithKeys(MockProvider):
    """The market has ``ssh_keys``."""

    def ensure_ssh_key(self, name: str, public_key: str) -> str:
        """See `InstallsKeys`. Two uploads of one key make two, as on real markets."""
        with self._market() as (market, _):
            number = self._refuse_read(market, "keys")
            for known in market.ssh_keys.values():
                if known.account == self._options.account and known.public_key == public_key:
                    return known.key_id
            key = SshKey(key_id=market.next_key_id(), account=self._options.account, name=name, public_key=public_key)
            market.ssh_keys[key.key_id] = key
            lost = self._faults.hits(market, "keys", number, kinds=["lost-answer"])
            self._document.save(market)
        if lost:
            raise Transient("the connection broke before the answer")
        return key.key_id


class WithExtras(MockProvider):
    """The market has ``volumes``, ``ssh_keys`` or both."""

    def extras(self) -> list[Extra]:
        """See `HasExtras`."""
        with self._market() as (market, _):
            self._refuse_read(market, "extras")
            keys = [Extra(ExtraKind.SSH_KEY, k.key_id, k.name) for k in market.ssh_keys.values() if self._is_mine(k)]
            volumes = [v for v in market.volumes.values() if self._is_mine(v) and v.deleted_at is None]
            return [*map(self._volume, volumes), *keys]

    def delete_extra(self, kind: ExtraKind, ref: str) -> TerminateAck:
        """See `HasExtras`. A volume goes after what it was made with."""
        if kind not in {ExtraKind.VOLUME, ExtraKind.SSH_KEY}:
            raise Unsupported(f"the market has no {kind} to delete")
        with self._market() as (market, now):
            known = market.volumes.get(ref) if kind is ExtraKind.VOLUME else market.ssh_keys.get(ref)
            if known is None or not self._is_mine(known) or (isinstance(known, Volume) and known.deleted_at):
                return TerminateAck.GONE
            number = self._faults.count(market, "delete")
            hits = self._faults.hits(market, "delete", number)
            self._document.save(market)
            refuse(hits)
            if isinstance(known, Volume) and _is_used(market, known, now):
                return TerminateAck.NOT_YET
            if first(hits, "delete", "not-yet"):
                return TerminateAck.NOT_YET
            if not first(hits, "delete", "ignored"):
                _delete(market, known, now)
                self._document.save(market)
            return TerminateAck.REQUESTED

    def _is_mine(self, one: Volume | SshKey) -> bool:
        return one.account == self._options.account


class WithClusters(MockProvider):
    """The market has ``clusters``."""

    def create_cluster(self, request: ClusterRequest) -> Cluster:
        """See `RentsClusters`. All members or none; they show up one after the other."""
        try:
            return self._create_cluster(request)
        except ProtocolError as error:
            raise AmbiguousOutcome(error.message) from error

    def cluster(self, cluster_id: str) -> Cluster:
        """See `RentsClusters`."""
        with self._market() as (market, now):
            self._refuse_read(market, "clusters")
            record = self._find_cluster(market, cluster_id, now)
            if record is None:
                raise InstanceNotFound(f"the market knows no cluster {cluster_id}")
            return self._show_cluster(market, record, now)

    def clusters(self) -> list[Cluster]:
        """See `RentsClusters`."""
        with self._market() as (market, now):
            number = self._refuse_read(market, "clusters")
            if self._faults.hits(market, "clusters", number, kinds=["empty"]):
                self._document.save(market)
                return []
            known = [r for c in market.clusters if (r := self._find_cluster(market, c, now)) and r.listed_at <= now]
            return [self._show_cluster(market, record, now) for record in known]

    def delete_cluster(self, cluster_id: str) -> TerminateAck:
        """See `RentsClusters`."""
        with self._market() as (market, now):
            record = self._find_cluster(market, cluster_id, now)
            if record is None or self._state(market, record, now) is State.TERMINATED:
                return TerminateAck.GONE
            return self._end(market, self._members(market, record), now)

    def _create_cluster(self, request: ClusterRequest) -> Cluster:
        with self._market() as (market, now):
            number, hits = self._order(market, request, request.nodes[0], now)
            record = self._rent_cluster(market, request, number, hits, now)
            made = self._show_cluster(market, record, now)
        self._answer_badly(hits, made.cluster_id)
        return made

    def _rent_cluster(
        self, market: Market, request: ClusterRequest, number: int, hits: Sequence[Fault], now: datetime
    ) -> ClusterRecord:
        listing = self._counter.check(market, request, now)
        cluster_id = market.next_cluster_id()
        members = []
        fates = [[*hits, *self._fate(market, number, node)] for node in request.nodes]
        for rank, (node, fate) in enumerate(zip(request.nodes, fates, strict=True)):
            rental = self._counter.new_rental(market, request, node, listing, hits=fate, now=now, rank=rank)
            rental.cluster_id = cluster_id
            market.rentals[rental.instance_id] = rental
            members.append(rental)
        record = ClusterRecord(
            cluster_id=cluster_id,
            account=self._options.account,
            key=request.key,
            members=[rental.instance_id for rental in members],
            created_at=now,
            listed_at=members[0].after(max(listed_after(fate) for fate in fates)),
        )
        market.clusters[cluster_id] = record
        if self._options.volumes:
            self._add_volume(market, request.key, cluster_id, now)
        self._document.save(market)
        world.reconcile(market, now, self._options.node_command)
        return record

    def _find_cluster(self, market: Market, cluster_id: str, now: datetime) -> ClusterRecord | None:
        record = market.clusters.get(cluster_id)
        if record is None or record.account != self._options.account:
            return None
        return record if any(self._is_there(rental, now) for rental in self._members(market, record)) else None

    def _members(self, market: Market, record: ClusterRecord) -> list[Rental]:
        return [market.rentals[instance_id] for instance_id in record.members]

    def _state(self, market: Market, record: ClusterRecord, now: datetime) -> InstanceState:
        states = {lifecycle.state_at(rental, now) for rental in self._members(market, record)}
        if states == {State.TERMINATED}:
            return State.TERMINATED
        return next((state for state in _ORDER if state in states), State.TERMINATING)

    def _show_cluster(self, market: Market, record: ClusterRecord, now: datetime) -> Cluster:
        state = self._state(market, record, now)
        listed = [rental for rental in self._members(market, record) if lifecycle.is_listed(rental, now)]
        return Cluster(
            provider=self.name,
            cluster_id=record.cluster_id,
            name=self._name(record.key),
            state=state,
            raw_state=state.value,
            members=tuple(self._show(market, rental, now) for rental in listed),
            created_at=record.created_at,
            extras=tuple(self._volume(volume) for volume in market.volumes_of(record.cluster_id)),
        )


def _is_used(market: Market, volume: Volume, now: datetime) -> bool:
    owners = [r for r in market.rentals.values() if volume.used_by in {r.instance_id, r.cluster_id}]
    return any(lifecycle.state_at(rental, now) is not State.TERMINATED for rental in owners)


def _delete(market: Market, one: Volume | SshKey, now: datetime) -> None:
    if isinstance(one, Volume):
        one.deleted_at = now
    else:
        del market.ssh_keys[one.key_id]
