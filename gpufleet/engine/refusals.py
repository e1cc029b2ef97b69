"""Answers to a create call after which surely nothing was created."""

from __future__ import annotations

from gpufleet.providers.errors import (
    AuthError,
    CapacityError,
    InvalidRequest,
    PaymentError,
    PriceChanged,
    QuotaError,
    RateLimited,
    Unsupported,
)

REFUSALS = (
    RateLimited,
    CapacityError,
    QuotaError,
    PriceChanged,
    InvalidRequest,
    AuthError,
    PaymentError,
    Unsupported,
)
