"""What the sandbox rents out: a few offers in the file's own shape, and instances that move on when looked at."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from gpufleet.domain.market import InstanceState, Offer
from gpufleet.providers.rest.description import Description, InstanceShape, Offers, Price
from gpufleet.providers.rest.reading import read_offers
from gpufleet.providers.sandbox.inverse import place, put, set_unset, uses_parts_of

SAMPLES = (("H200", Decimal(20), 141), ("B200", Decimal(40), 180))
GPUS = 8
STOCK = 3
MOST_DISK_GB = 20_000
_ORDER = (InstanceState.PROVISIONING, InstanceState.BOOTING, InstanceState.RUNNING)
_ENDING = (InstanceState.TERMINATING, InstanceState.TERMINATED)


@dataclass
class Made:
    """One instance."""

    id: str
    name: str
    sample: int
    created: datetime
    looks: int = 0
    ending: int | None = None
    """Looks since its end was asked for."""

    @property
    def state(self) -> InstanceState:
        if self.ending is not None:
            return _ENDING[min(self.ending, 1)]
        return _ORDER[min(self.looks, 3) - 1 if self.looks else 0]


class Market:
    """Offers and instances of one described provider."""

    def __init__(self, name: str, description: Description) -> None:
        self._name = name
        self._description = description
        self._numbers = itertools.count(1)
        self.stock = dict.fromkeys(range(len(SAMPLES)), STOCK)
        self.made: dict[str, Made] = {}
        # Where the file says that there is one of each, there is one.
        self.stock |= {sample: offer.stock for sample, offer in self.offers() if offer.stock}

    def bodies(self) -> tuple[Any, dict[str, Any]]:
        """The listing of offers, and the bodies of the further requests that belong to it."""
        also: dict[str, Any] = {}
        rows = [self._row(sample, also) for sample, left in self.stock.items() if left > 0]
        return rows, also

    def offers(self) -> Iterator[tuple[int, Offer]]:
        """What the description reads out of these bodies, by sample."""
        shape = self._description.offers
        for sample in self.stock:
            also: dict[str, Any] = {}
            row = self._row(sample, also)
            common = {"also": also, "option": self._description.settings, "query": {"gpu_count": GPUS, "spot": False}}
            runtime = self._description.capabilities.runtime
            for offer in read_offers(shape, [row], common, provider=self._name, runtime=runtime):
                yield sample, offer

    def rent(self, sample: int, name: str) -> Made:
        self.stock[sample] -= 1
        number = f"{next(self._numbers):04d}"
        made = Made(number, name, sample, datetime.now(UTC))
        self.made[made.id] = made
        return made

    def end(self, instance_id: str) -> Made | None:
        made = self.made.get(instance_id)
        if made is not None and made.ending is None:
            made.ending = 0
        return made

    def look(self) -> list[Made]:
        """Everything that is still told; looking moves it on."""
        for made in self.made.values():
            made.looks += 1
            made.ending = None if made.ending is None else made.ending + 1
        for made in [m for m in self.made.values() if m.state is InstanceState.TERMINATED]:
            del self.made[made.id]
            self.stock[made.sample] += 1
        return list(self.made.values())

    def instance(self, made: Made) -> dict[str, Any]:
        """An instance in the file's own shape."""
        shape = self._description.instance
        model, price, _ = SAMPLES[made.sample]
        roots: dict[str, Any] = {"item": {}}
        told = {
            "id": made.id,
            "name": made.name,
            "state": _word(shape, made.state),
            "gpu": model,
            "gpu_count": GPUS,
            "region": f"region-{made.sample}",
            "private_ip": f"10.0.0.{int(made.id) % 250 + 1}",
            "created_at": made.created.isoformat(),
        }
        for name, value in told.items():
            if name in shape.fields:
                put(shape.fields[name], roots, value)
        if "region" in shape.fields:
            set_unset(shape.fields["region"], roots, f"region-{made.sample}")
        if shape.price:
            _put_price(shape.price, roots, price)
        if made.state is InstanceState.RUNNING:
            for part, value in {"host": "203.0.113.7", "port": 22}.items():
                if expression := dict(shape.ssh).get(part):  # type: ignore[call-overload]
                    put(expression, roots, value)
        item: dict[str, Any] = roots["item"]
        return item

    def _row(self, sample: int, also: dict[str, Any]) -> Any:
        shape = self._description.offers
        every = [*shape.fields.values(), *shape.launch.values(), shape.price.amount, shape.keep or "@"]
        each: Any = {} if any(uses_parts_of(e, "each") for e in every) else f"type-{sample}"
        roots: dict[str, Any] = {"item": {}, "each": each, "also": also}
        self._describe(shape, roots, sample)
        if shape.each:
            # The list of parts lies inside the item, unless the item is that list's own row.
            put(shape.each, roots, [roots["each"]])
        return roots["item"]

    def _describe(self, shape: Offers, roots: dict[str, Any], sample: int) -> None:
        model, price, vram = SAMPLES[sample]
        told = {
            "gpu": model,
            "gpu_count": GPUS,
            "vram_gb_per_gpu": vram,
            "region": f"region-{sample}",
            "ram_gb": 2000,
            "disk_gb": MOST_DISK_GB,
            "vcpus": 200,
            "stock": self.stock[sample],
        }
        for name, value in told.items():
            if name in shape.fields:
                put(shape.fields[name], roots, value)
        for name in ("offer_id", "region"):
            set_unset(shape.fields[name], roots, f"{name.removesuffix('_id')}-{sample}")
        for name, expression in shape.launch.items():
            set_unset(expression, roots, f"{name}-{sample}")
        _put_price(shape.price, roots, price)
        if shape.keep:
            set_unset(shape.keep, roots, True)


def listing(expression: str, rows: list[Any]) -> Any:
    """The body of a listing."""
    return place(expression, rows)


def _put_price(price: Price, roots: dict[str, Any], usd: Decimal) -> None:
    amount = usd * (100 if price.unit == "cents" else 1) / (GPUS if price.per == "gpu" else 1)
    put(price.amount, roots, int(amount) if amount == amount.to_integral_value() else float(amount))
    if price.currency:
        put(price.currency, roots, "USD")
    if price.plus:
        set_unset(price.plus, roots, 0)


def _word(shape: InstanceShape, state: InstanceState) -> str:
    """The provider's word for a state, or for the nearest that it has one for."""
    near = {
        InstanceState.PROVISIONING: (InstanceState.PROVISIONING, InstanceState.BOOTING),
        InstanceState.BOOTING: (InstanceState.BOOTING, InstanceState.PROVISIONING),
        InstanceState.TERMINATING: (InstanceState.TERMINATING, InstanceState.RUNNING),
    }.get(state, (state,))
    for wanted in near:
        for word, meaning in shape.states.items():
            if meaning is wanted and word != "null":
                return word
    return state.value
