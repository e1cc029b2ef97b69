"""The API that providers/nexgpu.yaml assumes. Nobody outside NexGPU knows whether theirs is anything like it."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.providers.fakes.backend import MOST_DISK_GB, Answer, Backend, Call, Handler, Made, Refused, known_fields

OFFERS = {"h200x8": ("H200", 24.8), "b200x8": ("B200", 42.0)}


class Nexgpu(Backend):
    ids = "nx-{}"
    states: ClassVar[dict[str, str]] = {
        "provisioning": "pending",
        "booting": "booting",
        "running": "running",
        "terminating": "terminating",
        "terminated": "terminated",
    }

    def __init__(self) -> None:
        super().__init__()
        self.stock = {("h200x8", "eu"): 3, ("b200x8", "us"): 3}

    def routes(self) -> list[tuple[str, str, Handler]]:
        return [
            ("GET", "/account", lambda _: Answer(200, {"id": "acct-9"})),
            ("GET", "/offers", lambda _: Answer(200, {"offers": [self._offer(*place) for place in self.stock]})),
            ("POST", "/instances", self.create),
            ("GET", "/instances", self.instances),
            ("GET", "/instances/([^/]+)", self.get),
            ("DELETE", "/instances/([^/]+)", self.delete),
        ]

    def _offer(self, kind: str, region: str) -> dict[str, Any]:
        gpu, price = OFFERS[kind]
        row = {"id": kind, "gpu": gpu, "gpu_count": 8, "region": region, "price_per_hour": price, "currency": "USD"}
        return row | {"available": self.stock[kind, region]}

    def create(self, call: Call) -> Answer:
        known_fields(call.body, "offer_id", "name", "ssh_public_key", "disk_gb")
        place = next((p for p in self.stock if p[0] == call.body["offer_id"]), None)
        if place is None or self.stock[place] <= 0:
            raise Refused(409, {"code": "sold_out", "message": "sold out"})
        if call.body["disk_gb"] > MOST_DISK_GB:
            raise Refused(422, {"code": "invalid", "message": "disk_gb is too large"})
        return Answer(201, {"id": self.rent(*place, call.body["name"], call.body).id})

    def instances(self, call: Call) -> Answer:
        every = [self.row(m) for m in self.shown()]
        size, page = int(call.query["per_page"]), int(call.query["page"])
        return Answer(200, {"instances": every[(page - 1) * size : page * size], "total": len(every)})

    def get(self, call: Call) -> Answer:
        made = self.one(call.parts[0])
        if made is None:
            raise Refused(404, {"message": "no such instance"})
        return Answer(200, self.row(made))

    def delete(self, call: Call) -> Answer:
        if self.end(call.parts[0]) is None:
            raise Refused(404, {"message": "no such instance"})
        return Answer(202, {})

    def row(self, made: Made) -> dict[str, Any]:
        gpu, price = OFFERS[made.kind]
        return {
            "id": made.id,
            "name": made.key,
            "status": self.state(made),
            "gpu": gpu,
            "gpu_count": 8,
            "region": made.region,
            "price_per_hour": price,
            "ip": made.address if made.looks >= 3 else None,
            "ssh_port": 22,
            "created_at": made.created.isoformat(),
        }
