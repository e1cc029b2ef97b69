"""Prime Intellect. Shapes: PrimeIntellect-ai/prime packages/prime api/{pods,availability}.py, 66fb4b70 (2026-08-19)."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.providers.fakes.backend import MOST_DISK_GB, Answer, Backend, Call, Handler, Made, Refused

TYPES = {"B200_180GB": ("nebius", 43.2, 180), "H200_141GB": ("hyperstack", 25.9, 141)}


class Prime(Backend):
    ids = "pod-{}"
    forgets = True
    states: ClassVar[dict[str, str]] = {
        "provisioning": "PROVISIONING",
        "booting": "ACTIVE",
        "running": "ACTIVE",
        "terminating": "DELETING",
        "terminated": "TERMINATED",
    }

    def __init__(self) -> None:
        super().__init__()
        self.stock = {("B200_180GB", "us-central1"): 3, ("H200_141GB", "CANADA-1"): 3}

    def unauthorized(self) -> Answer:
        return Answer(401, {"detail": "Invalid API key"})

    def routes(self) -> list[tuple[str, str, Handler]]:
        return [
            ("GET", "/user/whoami", lambda _: Answer(200, {"data": {"id": "user-7", "email": "a@b"}})),
            ("GET", "/availability/gpus", self.gpus),
            ("POST", "/pods/", self.create),
            ("GET", "/pods/", self.pods),
            ("GET", "/pods/([^/]+)", self.pod),
            ("DELETE", "/pods/([^/]+)", self.delete),
        ]

    def gpus(self, call: Call) -> Answer:
        rows = [self._offer(kind, place) for (kind, place), left in self.stock.items() if left > 0]
        if call.query.get("gpu_count", "8") != "8":
            rows = []
        size, page = int(call.query["page_size"]), int(call.query["page"])
        return Answer(200, {"items": rows[(page - 1) * size : page * size], "totalCount": len(rows)})

    def _offer(self, kind: str, place: str) -> dict[str, Any]:
        provider, price, memory = TYPES[kind]
        return {
            "cloudId": f"8x{kind}",
            "gpuType": kind,
            "socket": "SXM6",
            "provider": provider,
            "dataCenter": place,
            "country": "US",
            "gpuCount": 8,
            "gpuMemory": memory,
            "disk": {"minCount": 100, "defaultCount": 1000, "maxCount": 20_000, "pricePerUnit": None, "step": 1},
            "vcpu": {"minCount": None, "defaultCount": 192, "maxCount": None, "pricePerUnit": None, "step": None},
            "memory": {"minCount": None, "defaultCount": 1600, "maxCount": None, "pricePerUnit": None, "step": None},
            "interconnect": 3200,
            "interconnectType": "Infiniband",
            "provisioningTime": 600,
            "stockStatus": "Available",
            "security": "secure_cloud",
            "prices": {"onDemand": price, "communityPrice": None, "isVariable": False, "currency": "USD"},
            "images": ["ubuntu_22_cuda_12"],
            "isSpot": False,
            "prepaidTime": None,
        }

    def create(self, call: Call) -> Answer:
        pod = call.body["pod"]
        if strange := sorted(set(call.body) - {"pod", "provider", "team", "disks"}):
            raise Refused(422, {"detail": [{"loc": ["body", strange[0]], "msg": "extra fields not permitted"}]})
        place = pod["gpuType"], pod.get("dataCenterId", "")
        if self.stock.get(place, 0) <= 0:
            raise Refused(400, {"detail": "The requested configuration is not available"})
        if pod["diskSize"] > MOST_DISK_GB:
            raise Refused(422, {"detail": [{"loc": ["body", "diskSize"], "msg": "diskSize is too large"}]})
        if pod["maxPrice"] < TYPES[pod["gpuType"]][1]:
            raise Refused(400, {"detail": "Price is above max price"})
        made = self.rent(*place, pod["name"], pod)
        return Answer(200, self.row(made))

    def pods(self, call: Call) -> Answer:
        offset, limit = int(call.query["offset"]), int(call.query["limit"])
        every = [self.row(m) for m in self.shown()]
        page = every[offset : offset + limit]
        return Answer(200, {"total_count": len(every), "offset": offset, "limit": limit, "data": page})

    def pod(self, call: Call) -> Answer:
        made = self.one(call.parts[0])
        if made is None:
            raise Refused(404, {"detail": "Pod not found"})
        return Answer(200, self.row(made))

    def delete(self, call: Call) -> Answer:
        if self.end(call.parts[0]) is None:
            raise Refused(404, {"detail": "Pod not found"})
        return Answer(200, {"status": "success"})

    def row(self, made: Made) -> dict[str, Any]:
        provider, price, _ = TYPES[made.kind]
        return {
            "id": made.id,
            "name": made.key,
            "gpuName": made.kind,
            "gpuCount": 8,
            "status": self.state(made),
            "createdAt": made.created.isoformat().replace("+00:00", "Z"),
            "providerType": provider,
            "installationStatus": "FINISHED" if made.looks >= 3 else "PENDING",
            "installationFailure": None,
            "sshConnection": [f"root@{made.address} -p 1234"] if made.looks >= 3 else [None],
            "ip": [made.address] if made.looks >= 3 else [None],
            "priceHr": price,
            "baseCurrency": "USD",
            "isSpot": False,
        }
