"""What the templates of a description see. Pure."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from gpufleet.domain.market import Offer, OfferQuery
from gpufleet.providers.base import ClusterRequest, CreateRequest


def request_values(request: CreateRequest | ClusterRequest) -> dict[str, Any]:
    """What a create's templates see."""
    offer = request.offer
    deadline = request.deadline_at
    return {
        "request": {
            "key": request.key,
            "fleet": request.fleet,
            "max_usd_per_hour": request.max_usd_per_hour,
            "ssh_public_key": request.ssh_public_key,
            "ssh_key_ref": request.ssh_key_ref,
            "disk_gb": request.disk_gb,
            "deadline_at": deadline.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if deadline else None,
            "image": request.image,
            "start": request.start,
        },
        "offer": offer_values(offer),
    }


def offer_values(offer: Offer) -> dict[str, Any]:
    """What a create's templates see as ``offer``."""
    return {
        "offer_id": offer.offer_id,
        "gpu": offer.gpu.model,
        "gpu_count": offer.gpu.count,
        "region": offer.region,
        "spot": offer.spot,
        "usd_per_hour": offer.usd_per_hour,
        "launch": dict(offer.launch),
    }


def query_values(query: OfferQuery) -> dict[str, Any]:
    """What the templates and fields of offers see."""
    return {
        "gpu": query.gpu.model if query.gpu else None,
        "gpu_count": query.gpu.count if query.gpu else None,
        "region": query.region,
        "spot": query.spot,
        "disk_gb": query.min_disk_gb,
    }
