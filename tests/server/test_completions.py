"""/v1/completions over a socket: answers, streams, and how they agree."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.harness import Served
from tests.server.tiny_model import EOS

#: A family emoji with joiners, CJK, a combining accent, Devanagari: one token for each byte.
MANY_BYTES = "👨‍👩‍👧 日本語 é नमस्ते"


def streamed(served: Served, prompt: Any, **fields: Any) -> list[Any]:
    stream = served.stream("/v1/completions", {"prompt": prompt, **fields})
    try:
        return stream.chunks()
    finally:
        stream.close()


def texts_of(chunks: list[Any]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


def test_an_answer(served: Served) -> None:
    answer = served.complete("hello", max_tokens=7)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json
    assert body["object"] == "text_completion"
    assert body["id"] == f"cmpl-{answer.headers['x-request-id']}"
    assert body["system_fingerprint"] == "fp_fake"
    assert body["choices"] == [{"index": 0, "text": "hellohe", "logprobs": None, "finish_reason": "length"}]
    assert body["usage"]["prompt_tokens"] == 5
    assert body["usage"]["completion_tokens"] == 7
    assert body["usage"]["total_tokens"] == 12


def test_max_tokens_is_16_when_it_is_not_given(served: Served) -> None:
    assert served.text("abcd") == "abcd" * 4
    assert served.text("abcd", max_tokens=None) == "abcd" * 4


def test_an_end_token_stops_and_is_not_shown(served: Served) -> None:
    choice = served.complete("hi<|endoftext|>", max_tokens=9).json["choices"][0]
    assert choice == {"index": 0, "text": "hi", "logprobs": None, "finish_reason": "stop"}
    usage = served.complete("hi<|endoftext|>", max_tokens=9).json["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 3)


def test_ignore_eos_goes_on(served: Served) -> None:
    assert served.text([104, EOS], max_tokens=4, ignore_eos=True) == "hh"
    shown = served.text([104, EOS], max_tokens=4, ignore_eos=True, skip_special_tokens=False)
    assert shown == "h<|endoftext|>h<|endoftext|>"


def test_stop_token_ids(served: Served) -> None:
    choice = served.complete("abcd", stop_token_ids=[99]).json["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "stop")
    assert served.text("abcd", stop_token_ids=[99], include_stop_str_in_output=True) == "abc"
    assert served.text("abcd", stop_token_ids=[99], min_tokens=4, max_tokens=6) == "abcdab"


@pytest.mark.parametrize("prompt", ["one", ["one"], [111, 110, 101], [[111, 110, 101]]])
def test_a_prompt_has_four_shapes(served: Served, prompt: Any) -> None:
    assert served.text(prompt, max_tokens=3) == "one"


def test_several_prompts_and_choices_are_numbered_in_order(served: Served) -> None:
    body = served.complete(["ab", "xyz"], n=2, max_tokens=3).json
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [
        (0, "aba"),
        (1, "aba"),
        (2, "xyz"),
        (3, "xyz"),
    ]
    assert body["usage"]["prompt_tokens"] == 5
    assert body["usage"]["completion_tokens"] == 12
    assert texts_of(streamed(served, ["ab", "xyz"], n=2, max_tokens=3)) == {0: "aba", 1: "aba", 2: "xyz", 3: "xyz"}


def test_st01_characters_of_several_tokens_arrive_whole(served: Served) -> None:
    count = len(MANY_BYTES.encode())
    chunks = streamed(served, MANY_BYTES, max_tokens=count)
    assert len(chunks) > 10
    assert texts_of(chunks) == {0: MANY_BYTES}
    assert not any("\ufffd" in chunk["choices"][0]["text"] for chunk in chunks)
    assert served.text(MANY_BYTES, max_tokens=count) == MANY_BYTES


def test_st01_a_character_cut_off_at_the_end_is_shown_as_such(served: Served) -> None:
    assert served.text("日", max_tokens=2) == "\ufffd"
    assert texts_of(streamed(served, "日", max_tokens=5)) == {0: "日\ufffd"}


def test_st01_bytes_that_are_no_text_do_not_stall_a_stream(served: Served) -> None:
    chunks = streamed(served, [0xFF, 97, 0xC3, 0x28], max_tokens=8)
    assert texts_of(chunks) == {0: "\ufffda\ufffd(" * 2}
    assert chunks[0]["choices"][0]["text"].startswith("\ufffd")


STOPS: list[tuple[Any, str]] = [
    ("DEFGHIJ", "ABC"),
    (["zzz", "GH"], "ABCDEF"),
    (["ABCDEFGHIJKLMNOPQRSTUVWXYZAC", "B"], "A"),
]


@pytest.mark.parametrize(("stop", "expected"), STOPS)
def test_st02_stop_strings_across_tokens(served: Served, stop: Any, expected: str) -> None:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    body = served.complete(alphabet, max_tokens=60, stop=stop).json
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (expected, "stop")
    chunks = streamed(served, alphabet, max_tokens=60, stop=stop)
    assert texts_of(chunks) == {0: expected}
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    first = [stop] if isinstance(stop, str) else stop
    matched = next(one for one in first if one in alphabet)
    assert body["usage"]["completion_tokens"] == len(expected + matched)
    assert served.text(alphabet, max_tokens=60, stop=stop, include_stop_str_in_output=True) == expected + matched


def test_st02_a_stop_string_that_does_not_come_is_flushed_at_the_end(served: Served) -> None:
    assert served.text("abc", max_tokens=5, stop="abd") == "abcab"
    assert texts_of(streamed(served, "abc", max_tokens=5, stop="abd")) == {0: "abcab"}


def test_a_stop_string_frees_the_sequence_at_once(served: Served) -> None:
    before = served.metric("generation_tokens_total")
    served.complete("abc", max_tokens=500, stop="c", n=2)
    assert served.metric("generation_tokens_total") - before == 6
    assert served.metric("queue_seats_taken") == 0


def test_logprobs(served: Served) -> None:
    shown = served.complete("é!", max_tokens=3, logprobs=2).json["choices"][0]["logprobs"]
    assert shown["tokens"] == ["\ufffd", "\ufffd", "!"]
    assert shown["token_logprobs"] == [-0.5] * 3
    assert shown["text_offset"] == [0, 1, 2]
    assert shown["top_logprobs"][2] == {"!": -0.5, '"': -1.5}
    chunks = streamed(served, "é!", max_tokens=3, logprobs=2)
    pieces = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    for name, values in shown.items():
        assert [value for piece in pieces for value in piece[name]] == values


def test_logprobs_leave_the_end_token_out(served: Served) -> None:
    shown = served.complete("hi<|endoftext|>", max_tokens=9, logprobs=0).json["choices"][0]["logprobs"]
    assert shown["tokens"] == ["h", "i"]


def test_logprobs_may_list_ids_beyond_the_tokenizer(served: Served) -> None:
    shown = served.complete([EOS], max_tokens=1, ignore_eos=True, logprobs=4).json["choices"][0]["logprobs"]
    assert shown["top_logprobs"] == [{"<|endoftext|>": -0.5, "": -1.5}]


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_st04_no_usage_unless_it_is_asked_for(served: Served, options: Any) -> None:
    chunks = streamed(served, "ab", max_tokens=2, stream_options=options)
    assert all(len(chunk["choices"]) == 1 and "usage" not in chunk for chunk in chunks)


def test_st04_usage_comes_last_and_alone(served: Served) -> None:
    *chunks, last = streamed(served, "ab", max_tokens=4, stream_options={"include_usage": True})
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"] == served.complete("ab", max_tokens=4).json["usage"] | {
        "prompt_tokens_details": last["usage"]["prompt_tokens_details"]
    }


def test_st04_stream_options_need_a_stream(served: Served) -> None:
    assert served.complete("ab", stream_options={"include_usage": True}).error["param"] == "stream_options"


def test_pc07_pages_are_shared_within_one_salt_only(served: Served) -> None:
    def cached(**fields: Any) -> int:
        usage = served.complete("a prompt that nobody else sends", max_tokens=1, **fields).json["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert cached(cache_salt="a") == 0
    assert cached(cache_salt="a") > 0
    assert cached(cache_salt="b") == 0
    assert cached() == 0
    assert cached() > 0
    assert served.complete("x", cache_salt="").error["param"] == "cache_salt"


def test_the_id_of_a_request_is_echoed_when_it_is_harmless(served: Served) -> None:
    def echoed(given: str) -> str:
        return served.request("GET", "/version", headers={"X-Request-Id": given}).headers["x-request-id"]

    assert echoed("abc-1.2_3") == "abc-1.2_3"
    assert len(echoed("spaces and\ttabs")) == 24
    assert len(echoed("x" * 500)) == 24
    assert echoed("<script>") != "<script>"
