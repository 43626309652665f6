"""What requests may ask for besides sampling: the prompt in the answer, token ids, the best of several, cut prompts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.harness import Served
from tests.server.tiny_model import START


@pytest.fixture(autouse=True)
def nothing_is_left(served: Served) -> Iterator[None]:
    yield
    assert served.metric("queue_seats_taken") == 0
    served.is_well()


def choice(served: Served, prompt: Any = "abc", **fields: Any) -> dict[str, Any]:
    answer = served.complete(prompt, **fields)
    assert answer.status == 200, answer.body
    (found,) = answer.json["choices"]
    return found


def streamed(served: Served, body: dict[str, Any], path: str = "/v1/completions") -> list[dict[str, Any]]:
    return served.stream(path, body).chunks()


def test_echo_is_the_prompt_and_then_the_answer(served: Served) -> None:
    assert choice(served, "abcd", max_tokens=2, echo=True)["text"] == "abcdab"
    assert choice(served, [97, 98], max_tokens=2, echo=True)["text"] == "abab"
    both = served.complete(["ab", "xyz"], max_tokens=2, n=2, echo=True).json
    assert [one["text"] for one in both["choices"]] == ["abab", "abab", "xyzxy", "xyzxy"]
    assert both["usage"]["completion_tokens"] == 8
    # A stop string in the prompt ends nothing.
    assert choice(served, "abcd", max_tokens=3, echo=True, stop="c")["text"] == "abcdab"


def test_echo_with_logprobs(served: Served) -> None:
    """OpenAI's legacy shape: nulls for the first token, offsets over prompt and answer."""
    found = choice(served, "abc", max_tokens=2, echo=True, logprobs=2)
    shown = found["logprobs"]
    assert shown["tokens"] == ["a", "b", "c", "a", "b"]
    assert shown["token_logprobs"] == [None, -1 / 64, -2 / 64, -0.5, -0.5]
    assert shown["text_offset"] == [0, 1, 2, 3, 4]
    assert shown["top_logprobs"][0] is None
    assert shown["top_logprobs"][1] == {"c": -1 / 64 - 1, "d": -1 / 64 - 1, "b": -1 / 64}
    assert "prompt_logprobs" not in found


def test_echo_alone_scores_a_text(served: Served) -> None:
    """max_tokens 0: what evaluation harnesses send."""
    answer = served.complete("abc", max_tokens=0, echo=True, logprobs=1)
    (found,) = answer.json["choices"]
    assert found["text"] == "abc"
    assert found["finish_reason"] == "length"
    assert found["logprobs"]["token_logprobs"] == [None, -1 / 64, -2 / 64]
    assert answer.json["usage"]["completion_tokens"] == 0
    assert choice(served, "abc", max_tokens=0, echo=True)["text"] == "abc"
    assert served.complete("abc", max_tokens=0).status == 400


@pytest.mark.parametrize("logprobs", [None, 1])
def test_a_streamed_echo_joins_to_the_whole_one(served: Served, logprobs: int | None) -> None:
    fields = {"max_tokens": 4, "echo": True, "logprobs": logprobs}
    whole = choice(served, "abc", **fields)
    events = streamed(served, {"prompt": "abc", **fields})
    assert "".join(event["choices"][0]["text"] for event in events) == whole["text"] == "abcabca"
    if logprobs is not None:
        joined = [event["choices"][0]["logprobs"] for event in events if event["choices"][0]["logprobs"]]
        for name, values in whole["logprobs"].items():
            assert [value for shown in joined for value in shown[name]] == values


def test_a_chat_does_not_echo(served: Served) -> None:
    answer = served.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "echo": True})
    assert (answer.status, answer.error["param"], answer.error["code"]) == (400, "echo", "unsupported_parameter")


def test_prompt_logprobs_in_vllms_shape(served: Served) -> None:
    shown = choice(served, "abc", max_tokens=1, prompt_logprobs=1)["prompt_logprobs"]
    assert shown[0] is None
    assert shown[1] == {
        "98": {"logprob": -1 / 64, "rank": None, "decoded_token": "b"},
        "99": {"logprob": -1 / 64 - 1, "rank": 1, "decoded_token": "c"},
    }
    assert len(shown) == 3
    messages = [{"role": "user", "content": "x"}]
    chat = served.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1, "prompt_logprobs": 0})
    assert chat.json["prompt_logprobs"][0] is None
    assert list(chat.json["prompt_logprobs"][1]) == ["117"]


def test_both_views_of_a_prompt_have_their_own_width(served: Served) -> None:
    found = choice(served, "abc", max_tokens=1, prompt_logprobs=2, echo=True, logprobs=1)
    assert len(found["prompt_logprobs"][1]) == 3
    assert len(found["logprobs"]["top_logprobs"][1]) == 2


def test_token_ids(served: Served) -> None:
    found = choice(served, "abc", max_tokens=4, return_token_ids=True)
    assert (found["prompt_token_ids"], found["token_ids"]) == ([97, 98, 99], [97, 98, 99, 97])
    events = streamed(served, {"prompt": "abc", "max_tokens": 4, "return_token_ids": True})
    choices = [event["choices"][0] for event in events]
    assert choices[0]["prompt_token_ids"] == [97, 98, 99]
    assert not any("prompt_token_ids" in one for one in choices[1:])
    assert [token for one in choices for token in one["token_ids"]] == [97, 98, 99, 97]
    assert "token_ids" not in choice(served, "abc", max_tokens=4)


def test_token_ids_of_a_chat(served: Served) -> None:
    body = {"messages": [{"role": "user", "content": "xy"}], "max_tokens": 3, "return_token_ids": True}
    whole = served.post("/v1/chat/completions", body).json
    assert whole["prompt_token_ids"][0] == START
    assert whole["choices"][0]["token_ids"] == whole["prompt_token_ids"][:3]
    events = streamed(served, body, "/v1/chat/completions")
    assert events[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    ids = [token for event in events for token in event["choices"][0].get("token_ids", [])]
    assert ids == whole["choices"][0]["token_ids"]


def test_the_best_of_several(served: Served) -> None:
    """The fake engine likes earlier choices better at this temperature; all tokens are counted."""
    answer = served.complete("abc", max_tokens=3, n=2, best_of=5, temperature=2, logprobs=0).json
    assert [one["index"] for one in answer["choices"]] == [0, 1]
    assert [one["logprobs"]["token_logprobs"][0] for one in answer["choices"]] == [-0.125, -0.25]
    assert answer["usage"]["completion_tokens"] == 15
    plain = served.complete("abc", max_tokens=3, best_of=2, temperature=2).json
    assert plain["choices"][0]["logprobs"] is None
    assert served.complete("abc", max_tokens=1, best_of=1, stream=True).status == 200


def test_a_beam_search_takes_a_seat_for_each_beam(served: Served) -> None:
    answer = served.complete("abc", max_tokens=3, n=2, beam_width=5, use_beam_search=True).json
    assert [one["index"] for one in answer["choices"]] == [0, 1]
    refused = served.complete(["a"] * 65, n=1, beam_width=2, use_beam_search=True)
    assert (refused.status, refused.error["param"]) == (400, "beam_width")
    assert "130" in refused.error["message"]


def test_prompts_are_cut_from_their_beginning(served: Served) -> None:
    found = choice(served, "abcdef", max_tokens=2, truncate_prompt_tokens=3, echo=True, return_token_ids=True)
    assert (found["text"], found["prompt_token_ids"]) == ("defde", [100, 101, 102])
    assert choice(served, [97, 98, 99], max_tokens=1, truncate_prompt_tokens=1)["text"] == "c"
    assert choice(served, "ab", max_tokens=1, truncate_prompt_tokens=7)["text"] == "a"
    long = "x" * 600 + "yz"
    assert served.complete(long, max_tokens=1).status == 400
    answer = served.complete(long, max_tokens=10, truncate_prompt_tokens=-1)
    assert answer.json["usage"] == {**answer.json["usage"], "prompt_tokens": 502, "completion_tokens": 10}
    ids = served.complete([120] * 1000, max_tokens=10, truncate_prompt_tokens=-1)
    assert ids.json["usage"]["prompt_tokens"] == 502
    assert served.complete(long, max_tokens=1, truncate_prompt_tokens=600).error["code"] == "context_length_exceeded"
