"""The official client against the endpoint, as callers use it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from tests.e2e.world import BATCH_KEY, CHAT_KEY, World


def _client(world: World, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{world.url}/v1", api_key=key, max_retries=0, timeout=60)


@pytest.mark.parametrize(("key", "by"), [(CHAT_KEY, "cell-decode-"), (BATCH_KEY, "native")])
def test_an_answer_in_one_piece(served: World, key: str, by: str) -> None:
    raw = _client(served, key).chat.completions.with_raw_response.create(
        model="glm5", messages=[{"role": "user", "content": "count to 7"}], max_tokens=100
    )
    answer = raw.parse()
    assert raw.headers["x-gpufleet-served-by"].startswith(by)
    assert answer.choices[0].finish_reason == "stop"
    assert "7" in (answer.choices[0].message.content or "")
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


@pytest.mark.parametrize(("key", "by"), [(CHAT_KEY, "cell-decode-"), (BATCH_KEY, "native")])
def test_a_streamed_answer(served: World, key: str, by: str) -> None:
    raw = _client(served, key).chat.completions.with_raw_response.create(
        model="glm5", messages=[{"role": "user", "content": "count to 7"}], max_tokens=100, stream=True
    )
    assert raw.headers["x-gpufleet-served-by"].startswith(by)
    chunks = list(raw.parse())
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert "7" in text
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"


def test_models_and_streamed_completions_work_on_an_interactive_key(served: World) -> None:
    client = _client(served, CHAT_KEY)
    assert [m.id for m in client.models.list()] == ["glm5"]
    chunks = list(client.completions.create(model="glm5", prompt="count to 3", max_tokens=50, stream=True))
    assert "3" in "".join(c.choices[0].text for c in chunks if c.choices)


def test_a_long_answer_without_max_tokens_is_not_cut(served: World) -> None:
    """TileRT's router would stop at 256 tokens when the caller names no limit."""
    answer = _client(served, CHAT_KEY).chat.completions.create(
        model="glm5", messages=[{"role": "user", "content": "count to 300"}]
    )
    assert answer.choices[0].finish_reason == "stop"
    assert "300" in (answer.choices[0].message.content or "")


def test_an_unknown_key_is_told_so(served: World) -> None:
    with pytest.raises(openai.AuthenticationError):
        _client(served, "sk-wrong").models.list()


def test_many_callers_at_once_each_get_their_own_whole_answer(served: World) -> None:
    def one(i: int) -> tuple[int, str]:
        key = CHAT_KEY if i % 2 else BATCH_KEY
        answer = _client(served, key).chat.completions.create(
            model="glm5", messages=[{"role": "user", "content": f"count to {i}"}], max_tokens=200
        )
        return i, answer.choices[0].message.content or ""

    with ThreadPoolExecutor(max_workers=12) as pool:
        answers = dict(pool.map(one, range(3, 27)))
    alone = {i: one(i)[1] for i in (3, 26)}
    assert answers[3] == alone[3]
    assert answers[26] == alone[26]
    assert len(set(answers.values())) == len(answers)
