"""Which requests TileRT's router cannot serve, as rules that HAProxy evaluates on the request body. Pure.

TileRT's pd_router answers 501 to parameters that its decode loop does not implement (tilert 0.1.6.post3: its tables of
static and profile fields; grammars are refused only after the prompt was computed). Such requests go to native vLLM. A
parameter that is present with its neutral value is fine for both.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Parameter:
    """A top-level field of the request body."""

    name: str
    neutral: str | None = None
    """Regular expression of the values that change nothing, as HAProxy's ``json_query`` writes them: numbers by ``%g``,
    booleans as 1 and 0. None: any value that is neither null nor a list nor an object counts."""
    greedy_is_fine: bool = False
    """Accepted together with temperature 0."""


SCALARS = (
    Parameter("n", "1"),
    Parameter("best_of", "1"),
    Parameter("seed", greedy_is_fine=True),
    Parameter("min_p", "0"),
    Parameter("min_tokens", "0"),
    Parameter("frequency_penalty", "-?0"),
    Parameter("presence_penalty", "-?0"),
    Parameter("repetition_penalty", "1"),
    Parameter("use_beam_search", "0"),
    Parameter("prompt_logprobs"),
    Parameter("skip_special_tokens", "1"),
    Parameter("response_format.type", "text"),
    Parameter("regex"),
    Parameter("ebnf"),
    Parameter("guided_regex"),
    Parameter("guided_grammar"),
    Parameter("echo", "0"),
    Parameter("suffix"),
)

COLLECTIONS = (
    "stop_token_ids",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "logprob_token_ids",
    "structured_outputs",
    "guided_json",
    "guided_choice",
)
"""Lists and objects; empty ones are neutral. HAProxy 2.6 reads no list or object by ``json_query``, so these are found
by their text. A key of that name deeper in the body matches too; that request goes native: slower, never wrong."""

COMPLETIONS_LISTS = ("prompt",)
"""A list of prompts, or one of token ids: pd_router would answer the first choice only."""

_BEFORE_KEY = r"[{,\s]"
"""What precedes a key. Inside a JSON string a quote is always escaped, so quoted text of a message never matches."""


def any_name_pattern() -> str:
    """Matches a body that might name one of the parameters: one cheap look before the exact ones."""
    names = {parameter.name.split(".")[0] for parameter in SCALARS} | set(COLLECTIONS)
    return rf'{_BEFORE_KEY}"(?:{"|".join(sorted(names))})"\s*:'


def filled_pattern(name: str) -> str:
    """Matches a list or an object of this name that is not empty."""
    return rf'{_BEFORE_KEY}"{name}"\s*:\s*[\[{{]\s*[^\]}}\s]'


def not_neutral_pattern(parameter: Parameter) -> str:
    """Matches every value of the parameter but its neutral ones."""
    return f"^(?!(?:{parameter.neutral})$)" if parameter.neutral else "."
