"""What a failed answer means: by the description's rules in their order, else by the HTTP status."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from gpufleet.domain.text import visible
from gpufleet.errors import ProviderRefused
from gpufleet.providers import errors
from gpufleet.providers.rest.description import ErrorMap, ErrorRule
from gpufleet.providers.rest.expressions import BadExpression, evaluate

CREATES = frozenset({"create", "create_cluster"})
_DEFAULT_WAIT = 5.0
_LONGEST_WAIT = 3600.0
_LONGEST_TEXT = 300
_KINDS: Mapping[str, type[ProviderRefused]] = {
    "auth": errors.AuthError,
    "payment": errors.PaymentError,
    "quota": errors.QuotaError,
    "capacity": errors.CapacityError,
    "not-found": errors.InstanceNotFound,
    "conflict": errors.ConflictError,
    "invalid": errors.InvalidRequest,
    "price": errors.PriceChanged,
    "transient": errors.Transient,
    "unsupported": errors.Unsupported,
}
_BY_STATUS: Mapping[int, str] = {
    401: "auth",
    402: "payment",
    403: "auth",
    404: "not-found",
    409: "conflict",
    429: "rate-limit",
}


@dataclass(frozen=True)
class Failure:
    """A failed answer, as far as it was understood."""

    kind: str
    """A word of `ErrorRule.kind`, or ``unknown``."""
    message: str
    retry_after: float | None
    ids: tuple[str, ...] = ()
    """Ids of what was created all the same."""

    def error(self, operation: str) -> ProviderRefused:
        """The failure as the engine is told it.

        A create is refused only where the provider surely did nothing: whatever is not understood, and any trouble on
        the provider's side, leaves it unclear.
        """
        if operation in CREATES and (self.ids or self.kind in {"ambiguous", "transient", "unknown"}):
            return errors.AmbiguousOutcome(self.message, instance_ids=self.ids)
        if operation in CREATES and self.kind in {"not-found", "conflict", "ending"}:
            return errors.AmbiguousOutcome(self.message)
        if self.kind == "rate-limit":
            return errors.RateLimited(self.message, retry_after=self.retry_after or _DEFAULT_WAIT)
        if self.kind == "ending":
            return errors.ConflictError(self.message, ending=True)
        return _KINDS.get(self.kind, errors.Transient)(self.message)


def understand(
    rules: ErrorMap, operation: str, *, status: int, body: Any, text: str, headers: Mapping[str, str]
) -> Failure:
    """Read a failed answer."""
    message = _message(rules, body, text)
    code = _value(rules.code, body)
    kind = _kind(rules, operation, status, str(code) if code is not None else "", message)
    if status >= 500 and operation in CREATES:
        kind = "ambiguous"
    told = f"{message} (HTTP {status}{f', {code}' if code else ''})"
    return Failure(kind, told, retry_after(headers))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a ``Retry-After`` header asks for, as a number or as a date; None where it says nothing useful."""
    value = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", value):
        return min(float(value), _LONGEST_WAIT)
    try:
        at = parsedate_to_datetime(value)
    except ValueError:
        return None
    aware = at if at.tzinfo else at.replace(tzinfo=UTC)
    return min(max(0.0, (aware - datetime.now(UTC)).total_seconds()), _LONGEST_WAIT)


def _kind(rules: ErrorMap, operation: str, status: int, code: str, message: str) -> str:
    for rule in rules.rules:
        if _fits(rule, operation, status, code, message):
            return rule.kind
    if status >= 500:
        return "transient"
    return _BY_STATUS.get(status, "invalid" if status == 422 else "unknown")


def _fits(rule: ErrorRule, operation: str, status: int, code: str, message: str) -> bool:
    return (
        (not rule.operations or operation in rule.operations)
        and (not rule.code or code in rule.code)
        and (not rule.status or status in rule.status)
        and (rule.text is None or re.search(rule.text, message, re.IGNORECASE) is not None)
    )


def _message(rules: ErrorMap, body: Any, text: str) -> str:
    found = _value(rules.message, body)
    if not isinstance(found, str) or not found:
        found = str(found or body) if isinstance(body, dict | list) else text
    return visible(" ".join(found.split()))[:_LONGEST_TEXT] or "no reason given"


def _value(expression: str | None, body: Any) -> Any:
    if expression is None:
        return None
    try:
        return evaluate(expression, body)
    except BadExpression:
        return None
