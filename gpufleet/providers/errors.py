"""What can go wrong between us and a provider, as types: the engine steers by these and never by strings.

The taxonomy is that of the field reports in `docs/faults.md`: an adapter maps the provider's own code first, the HTTP
status second, the text last. An unmatched failure of a create is `AmbiguousOutcome`, never `CapacityError`.
"""

from __future__ import annotations

from gpufleet.errors import ProviderRefused


class AuthError(ProviderRefused):
    """Key wrong, expired or lacking a scope. Stop all creates; keep obligations."""


class PaymentError(ProviderRefused):
    """Balance, card or spend-rate refusal."""


class QuotaError(ProviderRefused):
    """An account limit. Another offer of the same provider will not help."""


class CapacityError(ProviderRefused):
    """This offer is gone. Try the next one."""


class InstanceNotFound(ProviderRefused):
    """No such instance. On terminate this is success."""


class ConflictError(ProviderRefused):
    """The instance is in a state that forbids the call now (provisioning, already terminating). Ask again later.

    ``ending``: because it ends already.
    """

    def __init__(self, message: str, *, ending: bool = False) -> None:
        super().__init__(message)
        self.ending = ending


class RateLimited(ProviderRefused):
    """Refused before processing; safe to send again after ``retry_after`` seconds."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NotSent(ProviderRefused):
    """The request provably never left (DNS, connection refused): nothing was created."""


class Transient(ProviderRefused):
    """A read that may be tried again."""


class AmbiguousOutcome(ProviderRefused):
    """A create that may or may not have happened. Never resent; looked up by key.

    ``instance_ids`` holds ids that the error body named.
    """

    def __init__(self, message: str, *, instance_ids: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.instance_ids = instance_ids


class InvalidRequest(ProviderRefused):
    """The provider will never accept this request as it is."""


class PriceChanged(ProviderRefused):
    """The offer now costs more than the limit. Nothing was rented; plan again."""


class ProtocolError(ProviderRefused):
    """The answer does not have the expected shape. A listing with this error counts as no listing."""


class LimitReached(ProviderRefused):
    """A limit of our own forbids the call; it was not made."""


class Unsupported(ProviderRefused):
    """The provider cannot do this at all."""
