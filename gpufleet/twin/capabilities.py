"""Which request fields TileRT cannot honour, and how it refuses them (tilert 0.1.6.post3, pd_vllm/capabilities.py)."""

from __future__ import annotations

from typing import Any, NamedTuple


class CapabilityError(Exception):
    """A request that is refused rather than served wrongly."""

    error_type = "capability_error"
    status = 500

    def payload(self) -> dict[str, str]:
        """The body of the refusal."""
        return {"error": str(self), "error_type": self.error_type}


class InvalidParameter(CapabilityError):
    """A value of the wrong type or range."""

    error_type = "invalid_parameter"
    status = 400


class CapabilityUnavailable(CapabilityError):
    """A field that no decode node honours."""

    error_type = "capability_unavailable"
    status = 501


class GrammarError(CapabilityError):
    """A grammar that cannot be read."""

    error_type = "invalid_grammar"
    status = 400


class LogprobsUnsupported(CapabilityError):
    """Log probabilities asked for in a way that is not served."""

    error_type = "invalid_logprobs"
    status = 400


class NodeCapabilities(NamedTuple):
    """What depends on the model of a decode node."""

    penalties: bool = False
    ignore_eos: bool = False

    def intersect(self, other: NodeCapabilities) -> NodeCapabilities:
        """What both can do."""
        return NodeCapabilities(self.penalties and other.penalties, self.ignore_eos and other.ignore_eos)


NEUTRAL: dict[str, tuple[object, ...]] = {
    "stop_token_ids": (),
    "min_tokens": (0,),
    "frequency_penalty": (0,),
    "min_p": (0,),
    "seed": (),
    "logit_bias": (),
    "bad_words": (),
    "allowed_token_ids": (),
    "structured_outputs": (),
    "n": (1,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "prompt_logprobs": (),
    "logprob_token_ids": (),
    "skip_special_tokens": (True,),
}
"""Fields refused unless they have a neutral value; None is always neutral, and so is an empty list or object."""

_BY_MODEL: dict[str, tuple[object, str]] = {
    "repetition_penalty": (1, "penalties"),
    "presence_penalty": (0, "penalties"),
    "ignore_eos": (False, "ignore_eos"),
}
_TYPED = {"temperature": True, "top_p": True, "top_k": False}
"""Numbers that are checked first; True where a negative one is refused."""
_GREEDY = 1e-5


def validate(body: dict[str, Any], caps: NodeCapabilities) -> None:
    """Raise CapabilityError for the first field that cannot be honoured."""
    for field, at_least_zero in _TYPED.items():
        if body.get(field) is not None and _number(field, body[field]) < 0 and at_least_zero:
            raise InvalidParameter(f"{field} must be >= 0.0, got {body[field]}")
    for field, neutral in NEUTRAL.items():
        value = body.get(field)
        if _neutral(field, value, neutral) or (field == "seed" and _is_greedy(body)):
            continue
        raise CapabilityUnavailable(f"{field} is not supported by the TileRT decode stage")
    for field, (off, ability) in _BY_MODEL.items():
        if not _neutral(field, body.get(field), (off,)) and not getattr(caps, ability):
            raise CapabilityUnavailable(
                f"{field} (from the request) is not supported by the decode node serving this pool"
            )


def _number(field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InvalidParameter(f"{field} must be a number, got {value!r}")
    try:
        return float(value)
    except ValueError:
        raise InvalidParameter(f"{field} must be a number, got {value!r}") from None


def _neutral(field: str, value: object, neutral: tuple[object, ...]) -> bool:
    if value is None:
        return True
    if not neutral:
        return field not in ("seed", "prompt_logprobs") and not value
    if isinstance(value, bool) is not isinstance(neutral[0], bool):
        raise InvalidParameter(f"{field} must be of another type, got {type(value).__name__}")
    return value in neutral


def _is_greedy(body: dict[str, Any]) -> bool:
    temperature = body.get("temperature")
    return temperature is not None and float(temperature) < _GREEDY
