"""Runpod REST v2. Shapes: runpod/docs api-reference-v2/openapi.json, a900806e (2026-08-20)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tests.providers.fakes.backend import MOST_DISK_GB, Answer, Backend, Call, Handler, Made, Refused

GPUS = {"NVIDIA B200": ("6.79", 180), "NVIDIA H200": ("4.59", 141)}
CONTAINER = {"name", "image", "args", "env", "disk", "ports", "dataCenterIds", "startSsh", "mounts", "templateId"}


def failure(status: int, title: str, detail: str) -> Refused:
    return Refused(status, {"title": title, "status": status, "detail": detail, "errors": []})


@dataclass
class Group:
    id: str
    name: str
    wanted: dict[str, Any]
    created: str
    ended: bool = False


class Runpod(Backend):
    ids = "pod{}"
    states: ClassVar[dict[str, str]] = {
        "provisioning": "PROVISIONING",
        "booting": "STARTING",
        "running": "RUNNING",
        "terminated": "TERMINATED",
    }

    def __init__(self) -> None:
        super().__init__()
        self.stock = {("NVIDIA B200", "US-TX-3"): 4, ("NVIDIA H200", "EU-RO-1"): 4}
        self.clusters: dict[str, Group] = {}

    def unauthorized(self) -> Answer:
        return failure(401, "Unauthorized", "the API key is not valid").answer

    def routes(self) -> list[tuple[str, str, Handler]]:
        return [
            ("GET", "/v2/catalog/gpus", self.gpus),
            ("GET", "/v2/pods", self.pods),
            ("POST", "/v2/pods", self.create),
            ("GET", "/v2/pods/([^/]+)", self.pod),
            ("DELETE", "/v2/pods/([^/]+)", self.delete),
            ("GET", "/v2/clusters", lambda _: Answer(200, {"clusters": [self.group(c) for c in self._live()]})),
            ("POST", "/v2/clusters", self.create_cluster),
            ("GET", "/v2/clusters/([^/]+)", self.cluster),
            ("DELETE", "/v2/clusters/([^/]+)", self.delete_cluster),
        ]

    def gpus(self, call: Call) -> Answer:
        if call.query.get("include") == "AVAILABILITY" and "product" not in call.query:
            raise failure(400, "Bad Request", "include=AVAILABILITY needs product")
        return Answer(200, {"gpus": [self._gpu(name, int(call.query.get("count", "1"))) for name in GPUS]})

    def _gpu(self, name: str, count: int) -> dict[str, Any]:
        price, memory = GPUS[name]
        places = [(place, left) for (kind, place), left in self.stock.items() if kind == name]
        return {
            "id": name,
            "name": name.removeprefix("NVIDIA "),
            "pool": None,
            "manufacturer": "NVIDIA",
            "memory": memory,
            "secure": True,
            "community": False,
            "price": {"secure": float(price), "community": None},
            "maxCount": {"secure": 8, "community": 0},
            "availability": "HIGH" if count <= 8 else "NONE",
            "dataCenters": [
                {"id": place, "name": place, "availability": "HIGH" if left > 0 and count <= 8 else "NONE"}
                for place, left in places
            ],
            "cudaVersions": [],
        }

    def create(self, call: Call) -> Answer:
        body = call.body
        self._known(body, CONTAINER | {"cloud", "gpu", "globalNetworking", "startJupyter"})
        self._disk(body)
        place = body["gpu"]["id"], body["dataCenterIds"][0]
        self._take(place, 1)
        made = self.rent(*place, body["name"], body)
        return Answer(201, self.row(made))

    def create_cluster(self, call: Call) -> Answer:
        body = call.body
        self._known(body, CONTAINER | {"type", "compute", "startJupyter"})
        compute = body["compute"]
        if not 2 <= compute["podCount"] <= 250:
            raise failure(422, "Unprocessable", "compute.podCount must be between 2 and 250")
        place = compute["gpuTypeId"], body["dataCenterIds"][0]
        self._take(place, compute["podCount"])
        group = Group(f"cluster{next(self._numbers)}", body["name"], body, "2026-12-01T00:00:00Z")
        self.clusters[group.id] = group
        wanted = {**body, "gpu": {"id": compute["gpuTypeId"], "count": compute["gpuCountPerPod"]}}
        for rank in range(compute["podCount"]):
            self.rent(*place, f"{body['name']}-pod-{rank}", wanted, cluster=group.id, rank=rank)
        return Answer(201, self.group(group))

    def _known(self, body: dict[str, Any], names: set[str]) -> None:
        if strange := sorted(set(body) - names):
            raise failure(422, "Unprocessable", f"{strange[0]}: unknown field")

    def _disk(self, body: dict[str, Any]) -> None:
        if body["disk"] > MOST_DISK_GB:
            raise failure(400, "Bad Request", "disk: larger than any machine has")

    def _take(self, place: tuple[str, str], count: int) -> None:
        if self.stock.get(place, 0) < count:
            text = "There are no longer any instances available with the requested specifications."
            raise failure(400, "Bad Request", text)

    def pods(self, call: Call) -> Answer:
        members = call.query.get("includeClusterPods") == "true"
        return Answer(200, {"pods": [self.row(m) for m in self.shown() if members or m.cluster is None]})

    def pod(self, call: Call) -> Answer:
        made = self.one(call.parts[0])
        if made is None:
            raise failure(404, "Not Found", "pod not found")
        return Answer(200, self.row(made))

    def delete(self, call: Call) -> Answer:
        made = self.made.get(call.parts[0])
        if made and made.cluster and not made.ended:
            raise failure(409, "Conflict", "pod belongs to a cluster; delete the cluster instead")
        if self.end(call.parts[0]) is None:
            raise failure(404, "Not Found", "pod not found")
        return Answer(204)

    def cluster(self, call: Call) -> Answer:
        group = self.clusters.get(call.parts[0])
        if group is None or group not in self._live():
            raise failure(404, "Not Found", "cluster not found")
        return Answer(200, self.group(group))

    def delete_cluster(self, call: Call) -> Answer:
        group = self.clusters.get(call.parts[0])
        if group is None or group not in self._live():
            raise failure(404, "Not Found", "cluster not found")
        for made in self.made.values():
            if made.cluster == group.id:
                self.end(made.id)
        return Answer(204)

    def _live(self) -> list[Group]:
        self.shown()
        alive = {made.cluster for made in self.made.values() if made.ended is None}
        return [group for group in self.clusters.values() if group.id in alive]

    def group(self, group: Group) -> dict[str, Any]:
        members = [made for made in self.made.values() if made.cluster == group.id]
        counts: dict[str, int] = {}
        for made in members:
            counts[self.state(made)] = counts.get(self.state(made), 0) + 1
        return {
            "id": group.id,
            "name": group.name,
            "type": group.wanted["type"],
            "compute": group.wanted["compute"],
            "dataCenterId": group.wanted["dataCenterIds"][0],
            "pods": {"total": len(members), "byStatus": counts},
            "primary": {"podId": members[0].id, "status": self.state(members[0])},
            "createdAt": group.created,
        }

    def row(self, made: Made) -> dict[str, Any]:
        price, _ = GPUS[made.kind]
        up = made.looks >= 3
        direct = {"host": made.address, "port": 40_022, "username": "root", "command": "ssh"} if up else None
        row: dict[str, Any] = {
            "id": made.id,
            "name": made.key,
            "status": self.state(made),
            "actions": ["stop", "terminate"],
            "image": made.wanted["image"],
            "gpu": {"id": made.kind, "count": made.wanted["gpu"]["count"]},
            "cloud": "SECURE",
            "dataCenterId": made.region,
            "cost": float(price) * made.wanted["gpu"]["count"],
            "ssh": {"proxy": None, "direct": direct},
            "createdAt": made.created.isoformat().replace("+00:00", "Z"),
            "globalNetworking": {"enabled": False},
        }
        if made.cluster:
            row["cluster"] = {"id": made.cluster, "rank": made.rank, "role": "WORKER", "ip": f"10.65.0.{made.rank}"}
        return row
