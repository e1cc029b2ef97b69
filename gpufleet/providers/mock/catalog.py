"""The mock market's price list."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from gpufleet.domain.market import ClusterTerms, GpuShape, Offer
from gpufleet.errors import InvalidFleet
from gpufleet.providers.adapter import Options
from gpufleet.spec.values import parse_shape

SHIPPED = Path(__file__).with_name("catalog.yaml")


class Listing(Options):
    """One line of the price list. Seconds are simulated, except the billing ones, which are real."""

    offer_id: str
    gpu: Annotated[GpuShape, BeforeValidator(parse_shape)]
    vram_gb: int
    usd_per_hour: Annotated[Decimal, Field(gt=0, allow_inf_nan=False)]
    region: str
    stock: int = Field(ge=0)
    boot_seconds: float = Field(gt=0)
    interconnect: str = "none"
    interconnect_gbps: int | None = None
    vcpus: int = 64
    ram_gb: int = 1000
    disk_gb: int = 4000
    spot: bool = False
    min_rental_seconds: int = 0
    billing_increment_seconds: int = Field(default=1, ge=1)
    cluster: ClusterTerms | None = None
    """Rented only as a whole of so many nodes; ``stock`` counts nodes."""

    def offer(self, provider: str, *, usd_per_hour: Decimal, stock: int) -> Offer:
        """This line at the price and stock of now."""
        return Offer(
            provider=provider,
            offer_id=self.offer_id,
            gpu=self.gpu,
            vram_gb_per_gpu=self.vram_gb,
            usd_per_hour=usd_per_hour,
            region=self.region,
            interconnect=self.interconnect,
            interconnect_gbps=self.interconnect_gbps,
            ram_gb=self.ram_gb,
            disk_gb=self.disk_gb,
            vcpus=self.vcpus,
            spot=self.spot,
            stock=stock,
            boot_seconds=self.boot_seconds,
            min_rental_seconds=self.min_rental_seconds,
            billing_increment_seconds=self.billing_increment_seconds,
            cluster=self.cluster,
        )


def load(path: Path = SHIPPED) -> dict[str, Listing]:
    """Read a price list: a YAML list of `Listing`.

    Raises:
        InvalidFleet: the file is missing or wrong.
    """
    try:
        listings = TypeAdapter(list[Listing]).validate_python(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidFleet("the mock market's catalog cannot be read", where=str(path)) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        line = ".".join(str(part) for part in first["loc"])
        raise InvalidFleet(f"mock catalog, entry {line}: {first['msg']}", where=str(path)) from None
    return {listing.offer_id: listing for listing in listings}
