"""Which conversations become requests, and what random and salted prompts look like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.bench import dataset
from octavo.bench.completion import BenchRequest


def count_words(text: str) -> int:
    return len(text.split())


def turns(*texts: str, first: str = "human") -> dict[str, Any]:
    roles = [first, "gpt" if first == "human" else "human"]
    return {"id": "x", "conversations": [{"from": roles[i % 2], "value": text} for i, text in enumerate(texts)]}


def test_records_before_the_cut(tmp_path: Path) -> None:
    records = [turns("a", "b"), turns('quote " and \\', "é 🎉"), turns("c", "d")]
    whole = json.dumps(records, ensure_ascii=False).encode()
    path = tmp_path / "data.json"
    third = whole.rindex(b'{"id"')
    for cut in range(third + 1, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert list(dataset.whole_records(path)) == records[:2], cut
    path.write_bytes(whole)
    assert list(dataset.whole_records(path)) == records


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64])
def test_records_across_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    records = [turns("日本語", "b" * 50), turns("c", "d")]
    path = tmp_path / "data.json"
    path.write_text(json.dumps(records, ensure_ascii=False))
    monkeypatch.setattr(dataset, "_CHUNK_BYTES", chunk)
    assert list(dataset.whole_records(path)) == records


def test_not_an_array(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text('{"a": 1}')
    with pytest.raises(ValueError, match="must be a JSON array"):
        list(dataset.whole_records(path))


def test_only_conversations_that_a_human_opens(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    odd = [turns("only one"), {"id": "y", "conversations": []}, turns("g", "h", first="gpt"), turns("q", "r", "s")]
    path.write_text(json.dumps(odd))
    assert dataset.conversations(path) == [("q", "r")]


def test_selection_keeps_to_the_ranges_and_the_seed() -> None:
    pairs = [("p " * prompt, "r " * reply) for prompt in (15, 16, 300, 512, 513) for reply in (15, 16, 256, 257)]
    chosen = dataset.sharegpt(pairs, 6, count_words)
    lengths = {(request.prompt_tokens, request.output_tokens) for request in chosen}
    assert lengths == {(prompt, reply) for prompt in (16, 300, 512) for reply in (16, 256)}
    assert dataset.sharegpt(pairs, 6, count_words) == chosen
    assert dataset.sharegpt(pairs, 6, count_words, seed=1) != chosen
    assert dataset.sharegpt(pairs, 3, count_words) == chosen[:3]


def test_too_few_conversations() -> None:
    with pytest.raises(ValueError, match="has 0 conversations of fitting length; 5 were asked for"):
        dataset.sharegpt([("short", "short")], 5, count_words)


WORDS = [f" {first}{second}" for first in "abcdefghijklmnop" for second in "abcdefghijklmnop"]


def test_random_prompts_have_the_asked_lengths_and_share_the_prefix() -> None:
    requests = dataset.random_requests(5, 30, 7, WORDS, seed=3, prefix_tokens=20)
    assert [count_words(request.prompt) for request in requests] == [30] * 5
    assert {request.output_tokens for request in requests} == {7}
    assert len({request.prompt[: 20 * 3] for request in requests}) == 1
    assert len({request.prompt for request in requests}) == 5
    assert requests == dataset.random_requests(5, 30, 7, WORDS, seed=3, prefix_tokens=20)


def test_words_are_those_that_stay_single_tokens() -> None:
    assert dataset.single_token_words([*WORDS, "nospace", " 12", " é", " a-b"], count_words) == WORDS
    with pytest.raises(ValueError, match="too few plain words"):
        dataset.single_token_words([" one", " two"], count_words)


def test_salt_changes_every_prompt_and_nothing_else() -> None:
    requests = [BenchRequest("same", 1, 2)] * 500
    first, second = dataset.salted(requests, 1), dataset.salted(requests, 2)
    prompts = [request.prompt for request in first + second]
    assert len(set(prompts)) == 1000
    assert {len(prompt) for prompt in prompts} == {len("123456 same")}
    assert {(request.prompt_tokens, request.output_tokens) for request in first} == {(1, 2)}
