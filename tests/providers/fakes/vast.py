"""Vast.ai. Shapes: vast-ai/docs api-reference/openapi/yaml, c624622 (2026-08-07)."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.providers.fakes.backend import MOST_DISK_GB, Answer, Backend, Call, Handler, Made, Refused

STORAGE_COST = 0.15
PAGE = 25


def failure(status: int, error: str, msg: str, **more: Any) -> Refused:
    return Refused(status, {"success": False, "error": error, "msg": msg, **more})


class Vast(Backend):
    ids = "7000{}"
    states: ClassVar[dict[str, str]] = {
        "provisioning": "created",
        "booting": "loading",
        "running": "running",
        "terminated": "gone",
    }

    def __init__(self) -> None:
        super().__init__()
        self.asks: dict[str, dict[str, Any]] = {
            str(number): {"gpu": gpu, "dph": dph, "place": place, "machine": number - 1000}
            for number, gpu, dph, place in (
                (31001, "H200", 21.5, "Texas, US"),
                (31002, "H200", 22.5, "Texas, US"),
                (31003, "B200", 38.4, "Iceland, IS"),
            )
        }
        self.stock = {(ask, told["place"]): 1 for ask, told in self.asks.items()}

    def unauthorized(self) -> Answer:
        return failure(401, "auth_error", "Invalid user key").answer

    def routes(self) -> list[tuple[str, str, Handler]]:
        return [
            ("GET", "/api/v0/users/current/", lambda _: Answer(200, {"id": 4242, "balance": 512.25, "email": "a@b"})),
            ("POST", "/api/v0/bundles/", self.bundles),
            ("PUT", "/api/v0/asks/([^/]+)/", self.accept),
            ("GET", "/api/v1/instances/", self.instances),
            ("GET", "/api/v0/instances/([^/]+)/", self.instance),
            ("DELETE", "/api/v0/instances/([^/]+)/", self.destroy),
            # Deprecated, and answered with an empty list ever since (skypilot issue 10517).
            ("GET", "/api/v0/instances/", lambda _: Answer(200, {"instances": []})),
        ]

    def bundles(self, call: Call) -> Answer:
        wanted = call.body
        rows = []
        for ask, told in self.asks.items():
            if self.stock[ask, told["place"]] <= 0:
                continue
            if "gpu_name" in wanted and told["gpu"] not in wanted["gpu_name"]["in"]:
                continue
            if "num_gpus" in wanted and wanted["num_gpus"]["eq"] != 8:
                continue
            rows.append(self._offer(ask, told))
        return Answer(200, {"offers": rows})

    def _offer(self, ask: str, told: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": int(ask),
            "machine_id": told["machine"],
            "gpu_name": told["gpu"],
            "num_gpus": 8,
            "gpu_ram": 143_771,
            "dph_base": told["dph"],
            "dph_total": told["dph"] + 0.02,
            "min_bid": told["dph"] / 2,
            "storage_cost": STORAGE_COST,
            "disk_space": 12_000.0,
            "cpu_ram": 2_063_000,
            "cpu_cores": None,
            "geolocation": told["place"],
            "end_date": 1_893_456_000.0,
            "rentable": True,
            "verification": "verified",
            "datacenter": True,
        }

    def accept(self, call: Call) -> Answer:
        names = "image disk label runtype target_state cancel_unavail price env onstart vm template_hash_id args"
        if strange := sorted(set(call.body) - set(names.split())):
            raise failure(400, "invalid_args", f"unknown argument {strange[0]}")
        ask = call.parts[0]
        told = self.asks.get(ask)
        if told is None or self.stock[ask, told["place"]] <= 0:
            raise failure(
                404, "invalid_args", f"error 404/3603: no_such_ask Instance type by id {ask} is not available."
            )
        if call.body["disk"] > MOST_DISK_GB or len(call.body.get("onstart", "")) > 4096:
            raise failure(400, "invalid_args", "Invalid args: disk")
        made = self.rent(ask, told["place"], call.body["label"], call.body)
        return Answer(200, {"success": True, "new_contract": int(made.id)})

    def instances(self, call: Call) -> Answer:
        limit = min(int(call.query.get("limit", PAGE)), PAGE)
        start = int(call.query.get("after_token", "0"))
        every = self.shown()
        rows = [self.row(m) for m in every[start : start + limit]]
        after = start + limit
        return Answer(
            200,
            {
                "success": True,
                "instances_found": len(rows),
                "total_instances": len(every),
                "label_counts": {},
                "next_token": str(after) if after < len(every) else None,
                "instances": rows,
            },
        )

    def instance(self, call: Call) -> Answer:
        made = self.one(call.parts[0])
        if made is None:
            raise failure(404, "no_such_instance", "Instance not found")
        return Answer(200, {"instances": self.row(made)})

    def destroy(self, call: Call) -> Answer:
        if self.end(call.parts[0]) is None:
            raise failure(404, "no_such_instance", "Instance not found")
        return Answer(200, {"success": True, "msg": "Instance destroyed successfully"})

    def row(self, made: Made) -> dict[str, Any]:
        told = self.asks[made.kind]
        up = made.looks >= 3
        state = self.state(made) if made.looks > 1 else None
        return {
            "id": int(made.id),
            "label": made.key,
            "machine_id": told["machine"],
            "actual_status": state,
            "cur_state": "running",
            "next_state": "running",
            "intended_status": "running",
            "status_msg": "success, running" if up else None,
            "gpu_name": told["gpu"],
            "num_gpus": 8,
            "dph_total": told["dph"] + made.wanted["disk"] * STORAGE_COST / 720,
            "geolocation": told["place"],
            "public_ipaddr": f"{made.address}\n",
            "ports": {"22/tcp": [{"HostIp": "0.0.0.0", "HostPort": "41022"}]} if up else {},
            "ssh_host": "ssh5.vast.ai",
            "ssh_port": 10_600,
            "start_date": made.created.timestamp(),
            "end_date": 1_893_456_000.0,
            "is_bid": False,
        }
