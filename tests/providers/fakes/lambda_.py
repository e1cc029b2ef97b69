"""Lambda Cloud. Shapes: the OpenAPI of lambda_ai_cloud_api_client 2.4.1 (read 2026-11)."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.providers.fakes.backend import Answer, Backend, Call, Handler, Made, Refused, known_fields

TYPES = {
    "gpu_8x_b200_sxm6": ("B200 (180 GB SXM6)", 5352, 8),
    "gpu_8x_h100_sxm5": ("H100 (80 GB SXM5)", 2392, 8),
}


def failure(status: int, code: str, message: str) -> Refused:
    return Refused(status, {"error": {"code": code, "message": message, "suggestion": "try again"}})


class Lambda(Backend):
    ids = "0920582c7ff041399e34823a0be62{}"
    states: ClassVar[dict[str, str]] = {
        "provisioning": "booting",
        "booting": "booting",
        "running": "active",
        "terminating": "terminating",
        "terminated": "terminated",
    }

    def __init__(self) -> None:
        super().__init__()
        self.stock = {("gpu_8x_b200_sxm6", "us-east-1"): 3, ("gpu_8x_h100_sxm5", "us-west-2"): 3}

    def unauthorized(self) -> Answer:
        return failure(401, "global/invalid-api-key", "API key was invalid, expired, or deleted.").answer

    def routes(self) -> list[tuple[str, str, Handler]]:
        return [
            ("GET", "/instance-types", self.types),
            ("POST", "/instance-operations/launch", self.launch),
            ("POST", "/instance-operations/terminate", self.terminate),
            ("GET", "/instances", lambda _: Answer(200, {"data": [self.row(m) for m in self.shown()]})),
            ("GET", "/instances/([^/]+)", self.get),
            ("GET", "/ssh-keys", lambda _: Answer(200, {"data": list(self.ssh_keys.values())})),
            ("POST", "/ssh-keys", self.new_key),
            ("DELETE", "/ssh-keys/([^/]+)", self.drop_key),
        ]

    def types(self, _: Call) -> Answer:
        return Answer(200, {"data": {name: self._type(name) for name in TYPES}})

    def _type(self, name: str) -> dict[str, Any]:
        regions = [region for (kind, region), left in self.stock.items() if kind == name and left > 0]
        return {
            "instance_type": self._described(name),
            "regions_with_capacity_available": [{"name": r, "description": r.title()} for r in regions],
        }

    def _described(self, name: str) -> dict[str, Any]:
        description, cents, count = TYPES[name]
        return {
            "name": name,
            "description": f"8x {description}",
            "gpu_description": description,
            "price_cents_per_hour": cents,
            "specs": {"vcpus": 208, "memory_gib": 2900, "storage_gib": 22000, "gpus": count},
        }

    def launch(self, call: Call) -> Answer:
        body = call.body
        names = ["region_name", "instance_type_name", "ssh_key_names", "name", "hostname", "user_data", "tags", "image"]
        known_fields(body, *names)
        kind, region = body["instance_type_name"], body["region_name"]
        if len(body["ssh_key_names"]) != 1:
            raise failure(400, "global/invalid-parameters", "ssh_key_names: exactly one key is required")
        if len(body["name"]) > 64:
            raise failure(400, "global/invalid-parameters", "name: at most 64 characters")
        if self.stock.get((kind, region), 0) <= 0:
            code = "instance-operations/launch/insufficient-capacity"
            raise failure(400, code, "Not enough capacity to fulfill launch request.")
        made = self.rent(kind, region, body["name"], body)
        return Answer(200, {"data": {"instance_ids": [made.id]}})

    def terminate(self, call: Call) -> Answer:
        known_fields(call.body, "instance_ids")
        made = self.made.get(call.body["instance_ids"][0])
        if made is None or made.ended:
            raise failure(404, "global/object-does-not-exist", "Specified instance does not exist.")
        if made.ending is not None:
            raise failure(400, "global/unknown", "An unknown error occurred.")
        self.end(made.id)
        return Answer(200, {"data": {"terminated_instances": [self.row(made)]}})

    def get(self, call: Call) -> Answer:
        made = self.one(call.parts[0])
        if made is None:
            raise failure(404, "global/object-does-not-exist", "Specified instance does not exist.")
        return Answer(200, {"data": self.row(made)})

    def new_key(self, call: Call) -> Answer:
        ref = self.add_key({"name": call.body["name"], "public_key": call.body["public_key"]})
        return Answer(200, {"data": self.ssh_keys[ref]})

    def drop_key(self, call: Call) -> Answer:
        if self.ssh_keys.pop(call.parts[0], None) is None:
            raise failure(404, "global/object-does-not-exist", "Specified key does not exist.")
        return Answer(200, {})

    def row(self, made: Made) -> dict[str, Any]:
        row = {
            "id": made.id,
            "name": made.key,
            "status": self.state(made),
            "region": {"name": made.region, "description": made.region.title()},
            "instance_type": self._described(made.kind),
            "ssh_key_names": made.wanted["ssh_key_names"],
            "tags": made.wanted["tags"],
            "file_system_names": [],
        }
        return row | ({"ip": made.address, "private_ip": "10.19.0.7"} if made.looks >= 2 else {})
