"""The official openai package, unmodified, over a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from tests.clients.conftest import KEY
from tests.server import fake_engine
from tests.server.harness import Served, until

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
SAID = "user\nhi\nassistant\n"


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.url + "/v1", api_key=KEY, max_retries=0) as one:
        yield one


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "also-tiny"]
    assert client.models.retrieve("also-tiny").id == "also-tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=HI, max_tokens=21)
    assert answer.choices[0].message.content == SAID
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 42
    assert answer.usage.prompt_tokens_details is not None
    assert answer.model == "tiny"
    assert answer._request_id is not None


def test_chat_streamed(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="also-tiny", messages=HI, max_tokens=21, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = stream
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == SAID
    assert chunks[-1].choices[0].finish_reason == "length"
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 21


def test_the_stream_helper_accumulates(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="tiny", messages=HI, stop="assistant", logprobs=True, top_logprobs=1
    ) as stream:
        for _ in stream:
            pass
        answer = stream.get_final_completion()
    choice = answer.choices[0]
    assert choice.message.content == "user\nhi\n"
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert "".join(entry.token for entry in choice.logprobs.content).endswith("assistant")


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt=["ab", "xyz"], n=2, max_tokens=3, logprobs=1)
    assert [choice.text for choice in answer.choices] == ["aba", "aba", "xyz", "xyz"]
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.tokens == ["a", "b", "a"]
    stream = client.completions.create(model="tiny", prompt="abc", max_tokens=5, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "abcab"


def test_extra_body(client: openai.OpenAI) -> None:
    extra = {"stop_token_ids": [99], "top_k": 5, "min_p": 0.1, "ignore_eos": True, "priority": 1, "cache_salt": "s"}
    answer = client.completions.create(model="tiny", prompt="abc", extra_body=extra)
    assert answer.choices[0].text == "ab"


def test_errors_become_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="tiny", messages=HI, temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="tiny", prompt="x" * 600)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt-4o", prompt="x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


def test_an_error_inside_a_stream(client: openai.OpenAI) -> None:
    stream = client.completions.create(model="tiny", prompt="abc", max_tokens=50, seed=fake_engine.ERROR, stream=True)
    texts: list[str] = []
    with pytest.raises(openai.APIError, match="go on"):
        texts.extend(chunk.choices[0].text for chunk in stream)
    assert "".join(texts) == "abc"


def test_leaving_a_stream(client: openai.OpenAI, served: Served) -> None:
    stream = client.completions.create(model="tiny", prompt="abc", max_tokens=500, stream=True)
    next(iter(stream))
    stream.close()
    authorized = {"Authorization": f"Bearer {KEY}"}
    until(lambda: b'queue_seats_taken{model_name="tiny"} 0' in served.get("/metrics", **authorized).body)


def test_many_at_once(served: Served) -> None:
    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=served.url + "/v1", api_key=KEY, max_retries=0) as client:

            async def ask(number: int) -> str:
                stream = await client.completions.create(
                    model="tiny", prompt=f"request {number};", max_tokens=20, stream=True
                )
                return "".join([chunk.choices[0].text async for chunk in stream])

            return await asyncio.gather(*map(ask, range(64)))

    for number, text in enumerate(asyncio.run(ask_all())):
        assert (f"request {number};" * 2).startswith(text)
