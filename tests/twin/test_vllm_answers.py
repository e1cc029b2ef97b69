"""The vocabulary and the template that all serving stand-ins share."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.twin import answers, wire

TEXTS = st.text(st.characters(exclude_characters="\x00", exclude_categories=("Cs",)))


@given(TEXTS)
def test_tokens_turn_back_into_their_text(text: str) -> None:
    assert answers.decode(answers.encode(text)) == text


@given(TEXTS)
def test_each_token_is_whole_text_of_its_own(text: str) -> None:
    assert "".join(answers.decode([token]) for token in answers.encode(text)) == text


def test_tokens_fit_into_what_json_readers_keep_exactly() -> None:
    assert max(answers.encode("some words, and 漢字 <|user|>\n")) < 1 << 53


@given(st.text(st.characters(categories=("L", "N", "P", "Zs"), exclude_characters="<>|"), min_size=1))
def test_the_template_gives_the_question_back(text: str) -> None:
    prompt = answers.render([{"role": "system", "content": "be kind"}, {"role": "user", "content": text}])
    assert answers.question_of(prompt) == text.strip()


def test_a_request_id_is_stripped_the_same_way_on_both_legs() -> None:
    """Of a plain id; one that ends like vLLM's own suffix loses it on one side only, as with the real programs."""
    plain, ending = "0123456789abcdef", "job-ff"
    assert wire.derive_rid(f"chatcmpl-{plain}") == wire.derive_rid(f"chatcmpl-{plain}-0a1b2c3d") == plain
    assert wire.derive_rid(f"cmpl-{plain}-0-0a1b2c3d") == plain
    assert wire.derive_rid(f"chatcmpl-{ending}") != wire.derive_rid(f"chatcmpl-{ending}-0a1b2c3d")
