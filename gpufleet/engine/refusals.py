"""Which refusals another place may help against."""

from __future__ import annotations

from gpufleet.providers.errors import (
    AuthError,
    CapacityError,
    PaymentError,
    PriceChanged,
    QuotaError,
    Unsupported,
)

REFUSED_HERE = (QuotaError, PaymentError, AuthError, Unsupported)
"""No other offer of the same provider helps."""
ASK_ELSEWHERE = (CapacityError, PriceChanged, *REFUSED_HERE)
"""Another offer or another provider may have what this one has not."""
