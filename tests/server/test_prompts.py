"""Prompts and their limits, without a server."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.decoding import BodyDecoder
from octavo.server.errors import ApiError
from octavo.server.prompts import parse_prompts, room_for
from octavo.server.protocol import CompletionRequest

texts = st.text(st.characters(exclude_categories=["Cs"]))
ids = st.lists(st.integers(0, 9), min_size=1, max_size=20)
prompts = st.one_of(texts, st.lists(texts, min_size=1, max_size=8), ids, st.lists(ids, min_size=1, max_size=8))


@given(prompts, st.sampled_from([None, 0, 3]), st.booleans())
def test_every_spelling_of_a_prompt_is_read_as_json_says(prompt: Any, indent: int | None, ascii_only: bool) -> None:
    raw = msgspec.Raw(json.dumps(prompt, indent=indent, ensure_ascii=ascii_only).encode())
    several = isinstance(prompt, list) and not isinstance(prompt[0], int)
    assert parse_prompts(raw, 8, 20) == (prompt if several else [prompt])


scalars = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5)
values = st.recursive(scalars, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=3), x, max_size=3))


@given(values)
def test_anything_else_is_an_error_of_the_client(value: Any) -> None:
    if isinstance(value, str) or (isinstance(value, list) and value):
        value = [value, {}]
    with pytest.raises(ApiError) as refused:
        parse_prompts(msgspec.Raw(json.dumps(value).encode()), 8, 20)
    assert refused.value.status == 400
    assert (refused.value.detail.param or "").startswith("prompt")


fragments = st.sampled_from(['{"prompt":', '"', "a", "[", "]", "{", "}", ",", ":", "1", "-", "null", '"n"', "\\", " "])


@given(st.binary(max_size=50) | st.lists(fragments, max_size=15).map(lambda parts: "".join(parts).encode()))
def test_no_body_is_more_than_an_error_of_the_client(body: bytes) -> None:
    with contextlib.suppress(ApiError):  # and nothing else
        BodyDecoder(CompletionRequest, "prompt").decode(body)


@pytest.mark.parametrize("count", [1, 100, 8191, 8192, 10**7])
@pytest.mark.parametrize("max_tokens", [None, 1, 8191, 10**9])
def test_an_answer_always_has_room_for_a_token_and_none_too_many(count: int, max_tokens: int | None) -> None:
    if count >= 8192:
        with pytest.raises(ApiError, match="8192"):
            room_for(count, max_tokens, 8192, strict=False)
        return
    room = room_for(count, max_tokens, 8192, strict=False)
    assert 1 <= room <= 8192 - count
    assert room == min(max_tokens or 10**9, 8192 - count)
