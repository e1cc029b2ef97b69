"""What only some descriptions can do; the engine finds these abilities by type."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from gpufleet.domain.market import Extra, ExtraKind, Instance, InstanceState, Inventory
from gpufleet.providers.base import (
    Cluster,
    ClusterRequest,
    TerminateAck,
)
from gpufleet.providers.errors import (
    InstanceNotFound,
    ProtocolError,
    Unsupported,
)
from gpufleet.providers.rest.description import Clusters, One
from gpufleet.providers.rest.paging import read_all
from gpufleet.providers.rest.provider import RestProvider
from gpufleet.providers.rest.reading import read_cluster, read_extras
from gpufleet.providers.rest.values import request_values


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
        values = {**request_values(request), "nodes": len(request.nodes)}
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
