"""Verda. Shapes: verda-cloud/sdk-python, 164e09a (2026-04-17)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tests.providers.fakes.backend import KEY, MOST_DISK_GB, Answer, Backend, Call, Handler, Made, Refused

CLIENT_ID = "the-client"
TOKEN = "the-token-that-nobody-may-see"
TYPES = {"8B200.240V": ("B200", "40.72", "14.20"), "8H200.176V": ("H200", "26.32", "9.10")}
CLUSTERS = {"16H200": ("H200", "55.50", 16)}


def failure(status: int, code: str, message: str) -> Refused:
    return Refused(status, {"code": code, "message": message})


@dataclass
class Group:
    id: str
    wanted: dict[str, Any]
    looks: int = 0
    ended: bool = False


class Verda(Backend):
    ids = "deadc0de-a5d2-4972-ae4e-d429115d0{}"
    forgets = True
    states: ClassVar[dict[str, str]] = {
        "provisioning": "provisioning",
        "booting": "provisioning",
        "running": "running",
        "terminated": "gone",
    }

    def __init__(self) -> None:
        super().__init__()
        self.stock = {("8B200.240V", "FIN-03"): 3, ("8H200.176V", "FIN-02"): 3}
        self.volumes: dict[str, dict[str, Any]] = {}
        self.scripts: dict[str, dict[str, Any]] = {}
        self.clusters: dict[str, Group] = {}
        self.tokens: set[str] = set()

    def authorized(self, call: Call) -> bool:
        token = call.headers.get("authorization", "").removeprefix("Bearer ")
        return call.path == "/oauth2/token" or token in self.tokens

    def unauthorized(self) -> Answer:
        return failure(401, "unauthorized_request", "Access token is missing or invalid").answer

    def routes(self) -> list[tuple[str, str, Handler]]:
        return [
            ("POST", "/oauth2/token", self.token),
            ("GET", "/instance-types", lambda _: Answer(200, [self._type(name) for name in TYPES])),
            ("GET", "/instance-availability", self.availability),
            ("POST", "/instances", self.create),
            ("PUT", "/instances", self.action),
            ("GET", "/instances", lambda _: Answer(200, [self.row(m) for m in self.shown()])),
            ("GET", "/instances/([^/]+)", self.get),
            ("GET", "/volumes", lambda _: Answer(200, list(self.volumes.values()))),
            ("DELETE", "/volumes/([^/]+)", self.drop_volume),
            ("GET", "/scripts", lambda _: Answer(200, list(self.scripts.values()))),
            ("DELETE", "/scripts/([^/]+)", lambda c: Answer(200 if self.scripts.pop(c.parts[0], None) else 404)),
            ("GET", "/sshkeys", lambda _: Answer(200, list(self.ssh_keys.values()))),
            ("POST", "/sshkeys", lambda c: Answer(201, self.add_key(c.body))),
            ("DELETE", "/sshkeys/([^/]+)", self.drop_key),
            ("GET", "/cluster-types", lambda _: Answer(200, [self._cluster_type(name) for name in CLUSTERS])),
            ("GET", "/cluster-availability", self.cluster_availability),
            ("GET", "/clusters", lambda _: Answer(200, [self.group(c) for c in self._live()])),
            ("POST", "/clusters", self.create_cluster),
            ("PUT", "/clusters", self.cluster_action),
            ("GET", "/clusters/([^/]+)", self.cluster),
        ]

    def token(self, call: Call) -> Answer:
        wanted = {"grant_type": "client_credentials", "client_id": CLIENT_ID, "client_secret": KEY}
        if call.body != wanted:
            raise failure(401, "unauthorized_request", "Invalid client id or client secret")
        token = f"{TOKEN}-{next(self._numbers)}"
        self.tokens.add(token)
        return Answer(200, {"access_token": token, "expires_in": 3600, "token_type": "Bearer"})

    def _type(self, name: str) -> dict[str, Any]:
        model, price, spot = TYPES[name]
        return {
            "id": f"id-{name}",
            "instance_type": name,
            "price_per_hour": price,
            "spot_price": spot,
            "model": model,
            "name": f"{model} SXM 141GB",
            "gpu": {"description": f"8x {model} SXM6 180GB", "number_of_gpus": 8},
            "cpu": {"description": "240 CPU", "number_of_cores": 240},
            "memory": {"description": "2TB RAM", "size_in_gigabytes": 2000},
            "gpu_memory": {"description": "1.4TB VRAM", "size_in_gigabytes": 1440},
            "currency": "usd",
        }

    def _cluster_type(self, name: str) -> dict[str, Any]:
        model, price, count = CLUSTERS[name]
        return {
            "id": f"cluster-{name}",
            "model": model,
            "cluster_type": name,
            "gpu": {"description": f"{count}x {model}", "number_of_gpus": count},
            "price_per_hour": price,
            "currency": "usd",
            "node_details": [f"{count // 8}x 8 GPU nodes"],
        }

    def availability(self, call: Call) -> Answer:
        places: dict[str, list[str]] = {}
        for (kind, place), left in self.stock.items():
            places.setdefault(place, []).extend([kind] if left > 0 and call.query["isSpot"] == "false" else [])
        return Answer(200, [{"location_code": p, "availabilities": names} for p, names in places.items()])

    def cluster_availability(self, _: Call) -> Answer:
        free = [] if any(not c.ended for c in self.clusters.values()) else list(CLUSTERS)
        return Answer(200, [{"location_code": "FIN-03", "availabilities": free}])

    def create(self, call: Call) -> Answer:
        body = call.body
        names = (
            "instance_type image hostname description location_code ssh_key_ids startup_script_id os_volume volumes "
            "existing_volumes is_spot contract pricing coupon"
        )
        if strange := sorted(set(body) - set(names.split())):
            raise failure(400, "invalid_request", f"property {strange[0]} should not exist")
        if body["os_volume"]["size"] > MOST_DISK_GB:
            raise failure(400, "invalid_request", "os_volume.size must not be greater than 20000")
        if any(key not in self.ssh_keys for key in body["ssh_key_ids"]):
            raise failure(400, "invalid_request", "SSH key not found")
        place = body["instance_type"], body["location_code"]
        if self.stock.get(place, 0) <= 0:
            raise failure(400, "invalid_request", "Instance type is not available in this location")
        made = self.rent(*place, body["hostname"], body)
        self.volumes[f"vol-{made.id}"] = {
            "id": f"vol-{made.id}",
            "status": "attached",
            "name": body["os_volume"]["name"],
            "size": body["os_volume"]["size"],
            "type": "NVMe",
            "is_os_volume": True,
            "instance_id": made.id,
            "base_hourly_cost": 0.027,
            "currency": "usd",
        }
        return Answer(202, made.id)

    def action(self, call: Call) -> Answer:
        body = call.body
        for instance_id in body["id"]:
            made = self.made.get(instance_id)
            if made is None:
                raise failure(404, "not_found", "Instance not found")
            if made.ended or made.ending is not None:
                raise failure(400, "invalid_request", "Can't discontinue a discontinued instance")
            if made.looks < 3:
                raise failure(400, "invalid_request", "Can't discontinue a provisioning instance")
            self.end(instance_id)
            volume = self.volumes[f"vol-{made.id}"]
            volume |= {"status": "detached", "instance_id": None}
        return Answer(202)

    def get(self, call: Call) -> Answer:
        made = self.one(call.parts[0])
        if made is None:
            raise failure(404, "not_found", "Instance not found")
        return Answer(200, self.row(made))

    def drop_volume(self, call: Call) -> Answer:
        volume = self.volumes.get(call.parts[0])
        if volume is None:
            raise failure(404, "not_found", "Volume not found")
        if volume["instance_id"]:
            raise failure(400, "invalid_request", "Volume is attached to an instance")
        if call.body != {"is_permanent": True}:
            volume["status"] = "trash"
            return Answer(202)
        del self.volumes[call.parts[0]]
        return Answer(202)

    def drop_key(self, call: Call) -> Answer:
        if self.ssh_keys.pop(call.parts[0], None) is None:
            raise failure(404, "not_found", "SSH key not found")
        return Answer(200)

    def create_cluster(self, call: Call) -> Answer:
        body = call.body
        names = (
            "hostname description cluster_type image ssh_key_ids contract location_code startup_script_id shared_volume"
        )
        if strange := sorted(set(body) - set(names.split())):
            raise failure(400, "invalid_request", f"property {strange[0]} should not exist")
        if any(not c.ended for c in self.clusters.values()):
            raise failure(400, "invalid_request", "Cluster type is not available")
        group = Group(f"cluster-{next(self._numbers)}", body)
        self.clusters[group.id] = group
        volume = f"vol-{group.id}"
        self.volumes[volume] = {"id": volume, "status": "attached", "name": body["shared_volume"]["name"]}
        self.volumes[volume] |= {"instance_id": group.id, "base_hourly_cost": 0.1, "currency": "usd"}
        return Answer(202, {"id": group.id})

    def cluster_action(self, call: Call) -> Answer:
        (action,) = call.body["actions"]
        group = self.clusters.get(action["id"])
        if group is None or action["action"] != "discontinue":
            raise failure(404, "not_found", "Cluster not found")
        group.ended = True
        self.volumes[f"vol-{group.id}"]["instance_id"] = None
        return Answer(202)

    def cluster(self, call: Call) -> Answer:
        group = self.clusters.get(call.parts[0])
        if group is None or group.ended:
            raise failure(404, "not_found", "Cluster not found")
        group.looks += 1
        return Answer(200, self.group(group))

    def _live(self) -> list[Group]:
        live = [group for group in self.clusters.values() if not group.ended]
        for group in live:
            group.looks += 1
        return live

    def group(self, group: Group) -> dict[str, Any]:
        count = CLUSTERS[group.wanted["cluster_type"]][2] // 8
        state = "running" if group.looks > 2 else "provisioning"
        return {
            "id": group.id,
            "hostname": group.wanted["hostname"],
            "description": group.wanted["description"],
            "status": state,
            "created_at": "2026-12-01T00:00:00Z",
            "location": group.wanted["location_code"],
            "cluster_type": group.wanted["cluster_type"],
            "ip": "203.0.113.9" if state == "running" else None,
            "worker_nodes": [
                {"id": f"{group.id}-w{n}", "status": state, "hostname": f"worker-{n}", "private_ip": f"10.4.0.{n + 2}"}
                for n in range(count if group.looks > 1 else 0)
            ],
            "shared_volumes": [{"id": f"vol-{group.id}", "name": group.wanted["hostname"], "size_in_gigabytes": 1000}],
            "ssh_key_ids": group.wanted["ssh_key_ids"],
        }

    def row(self, made: Made) -> dict[str, Any]:
        model, price, _ = TYPES[made.kind]
        return {
            "id": made.id,
            "instance_type": made.kind,
            "price_per_hour": float(price),
            "hostname": made.key,
            "description": made.wanted["description"],
            "status": self.state(made),
            "created_at": made.created.isoformat().replace("+00:00", "Z"),
            "ssh_key_ids": made.wanted["ssh_key_ids"],
            "gpu": {"description": f"8x {model} SXM6 180GB", "number_of_gpus": 8},
            "ip": made.address if made.looks >= 3 else None,
            "os_volume_id": f"vol-{made.id}",
            "location": made.region,
            "is_spot": False,
        }
