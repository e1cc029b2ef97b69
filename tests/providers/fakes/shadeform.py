"""Shadeform. Shapes: shadeform/docs openapi.yaml, 8d086fb (2026-03-05)."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.providers.fakes.backend import KEY, Answer, Backend, Call, Handler, Made, Refused, known_fields

TYPES = {"B200x8": ("hyperstack", 4400, "B200", 180), "H200x8": ("nebius", 2480, "H200", 141)}


class Shadeform(Backend):
    ids = "d290f1ee-6c54-4b01-90e6-d701748f0{}"
    forgets = False
    states: ClassVar[dict[str, str]] = {
        "provisioning": "pending_provider",
        "booting": "pending",
        "running": "active",
        "terminating": "deleting",
        "terminated": "deleted",
    }

    def __init__(self) -> None:
        super().__init__()
        self.stock = {("B200x8", "canada-1"): 3, ("H200x8", "helsinki-fi-1"): 3}

    def authorized(self, call: Call) -> bool:
        return call.headers.get("x-api-key") == KEY

    def routes(self) -> list[tuple[str, str, Handler]]:
        return [
            ("GET", "/instances/types", self.types),
            ("POST", "/instances/create", self.create),
            ("GET", "/instances", lambda _: Answer(200, {"instances": [self.row(m) for m in self.shown()]})),
            ("GET", "/instances/([^/]+)/info", self.info),
            ("POST", "/instances/([^/]+)/delete", self.delete),
            ("GET", "/sshkeys", lambda _: Answer(200, {"ssh_keys": list(self.ssh_keys.values())})),
            ("POST", "/sshkeys/add", lambda c: Answer(200, {"id": self.add_key({**c.body, "is_default": "false"})})),
            ("POST", "/sshkeys/([^/]+)/delete", self.drop_key),
        ]

    def types(self, call: Call) -> Answer:
        wanted = call.query.get("gpu_type"), call.query.get("num_gpus", "8")
        rows = [
            self._type(name) for name, (_, _, gpu, _) in TYPES.items() if wanted[0] in {None, gpu} and wanted[1] == "8"
        ]
        return Answer(200, {"instance_types": rows})

    def _type(self, name: str) -> dict[str, Any]:
        cloud, cents, _, _ = TYPES[name]
        places = [(region, left) for (kind, region), left in self.stock.items() if kind == name]
        return {
            "cloud": cloud,
            "shade_instance_type": name,
            "cloud_instance_type": name.lower(),
            "configuration": self._configuration(name),
            "hourly_price": cents,
            "deployment_type": "vm",
            "availability": [{"region": r, "available": n > 0, "display_name": r} for r, n in places],
            "boot_time": {"min_boot_in_sec": 180, "max_boot_in_sec": 600},
        }

    def _configuration(self, name: str) -> dict[str, Any]:
        _, _, gpu, vram = TYPES[name]
        return {
            "memory_in_gb": 2000,
            "storage_in_gb": 30_000,
            "vcpus": 192,
            "num_gpus": 8,
            "gpu_type": gpu,
            "interconnect": "sxm6",
            "nvlink": True,
            "os_options": ["ubuntu24.04_cuda13.0_shade_os", "ubuntu22.04_cuda12.2_shade_os"],
            "vram_per_gpu_in_gb": vram,
            "gpu_manufacturer": "nvidia",
        }

    def create(self, call: Call) -> Answer:
        body = call.body
        names = "cloud region shade_instance_type shade_cloud name os ssh_key_id tags auto_delete launch_configuration"
        known_fields(body, *names.split())
        place = body["shade_instance_type"], body["region"]
        if self.stock.get(place, 0) <= 0:
            raise Refused(409, {"code": "OUT_OF_STOCK", "message": "The instance type is out of stock in this region"})
        return Answer(200, {"id": self.rent(*place, body["name"], body).id})

    def info(self, call: Call) -> Answer:
        made = self.one(call.parts[0])
        if made is None:
            raise Refused(404, {"message": "instance not found"})
        more = {"auto_delete": made.wanted.get("auto_delete"), "ssh_key_id": made.wanted.get("ssh_key_id")}
        return Answer(200, self.row(made) | more)

    def delete(self, call: Call) -> Answer:
        if self.end(call.parts[0]) is None:
            raise Refused(404, {"message": "instance not found"})
        return Answer(200)

    def drop_key(self, call: Call) -> Answer:
        if self.ssh_keys.pop(call.parts[0], None) is None:
            raise Refused(404, {"message": "ssh key not found"})
        return Answer(200)

    def row(self, made: Made) -> dict[str, Any]:
        cloud, cents, _, _ = TYPES[made.kind]
        return {
            "id": made.id,
            "cloud": cloud,
            "region": made.region,
            "shade_instance_type": made.kind,
            "cloud_instance_type": made.kind.lower(),
            "cloud_assigned_id": f"{cloud}-{made.id[-3:]}",
            "shade_cloud": True,
            "name": made.key,
            "configuration": self._configuration(made.kind),
            "ip": made.address if made.looks >= 2 else "",
            "ssh_user": "shadeform",
            "ssh_port": 22,
            "status": self.state(made),
            "cost_estimate": "0.00",
            "hourly_price": cents,
            "tags": made.wanted["tags"],
            "created_at": made.created.isoformat().replace("+00:00", "Z"),
            "deleted_at": made.ended.isoformat().replace("+00:00", "Z") if made.ended else "0001-01-01T00:00:00Z",
        }
